"""Passes over a tile of logits: masses of blocks, and exponentials, compiled where numba can be."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

from outsize.kernels.arrays import array, is_plain_float
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.softmax.logit_tiles import LogitTile
from outsize.kernels.threads import num_parts, run_parts

BLOCK = 32  # items; below 32 the pass slows down, and longer blocks make draws dearer
_LEAST_LOGITS = 1 << 16
_LEAST_PER_THREAD = 1 << 16


class BlockMasses:
    """Log-sum-exps of blocks of items per query, gathered tile by tile.

    Args:
        queries: The queries; the masses are on their device.
        num_items: Number of items.
        num_blocks: Room for blocks; those without items have a mass of −inf.
    """

    def __init__(
        self, queries: Float32[Tensor, "num_queries dim"], num_items: int, num_blocks: int
    ) -> None:
        self._sums = queries.new_zeros(len(queries), num_blocks)
        self._peaks = torch.zeros_like(self._sums)
        self._kernels = _kernels(queries, num_items)

    def add(
        self, tile: LogitTile
    ) -> tuple[Float32[Tensor, "queries parts items"], Float32[Tensor, "queries parts 1"]]:
        """Add the blocks of a tile, which must begin with a block; overwrites its logits.

        Returns:
            exp(logit − peak) of all items, in one or more parts of equal length, and the peak of
            each part. The last part may be padded with zeros.
        """
        first = tile.items.start // BLOCK
        sums, peaks = self._sums[tile.queries], self._peaks[tile.queries]
        if self._kernels is not None:
            outputs = (array(tile.logits), first, array(sums), array(peaks))
            run_parts(self._kernels.add_tile, _num_parts(tile.logits), *outputs)
            return tile.logits.unsqueeze(1), peaks[:, first, None, None]
        logits = tile.logits
        num_missing = -logits.shape[1] % BLOCK
        if num_missing:
            logits = torch.nn.functional.pad(logits, (0, num_missing), value=-torch.inf)
        logits = logits.view(len(logits), -1, BLOCK)
        # In place, this takes two thirds of the time of torch.logsumexp. If all logits are −inf, a
        # finite peak gives −inf instead of NaN.
        peak = logits.amax(dim=2, keepdim=True).clamp_(min=torch.finfo(torch.float32).min)
        blocks = slice(first, first + logits.shape[1])
        sums[:, blocks] = logits.sub_(peak).exp_().sum(dim=2)
        peaks[:, blocks] = peak.squeeze(2)
        return logits, peak

    def finish(self) -> Float32[Tensor, "num_queries blocks"]:
        """The log-sum-exp of every block; call it once, after all tiles."""
        return self._sums.log_().add_(self._peaks)


def exponentiate(
    logits: Float32[Tensor, "queries items"], subtracted: Float32[Tensor, " queries"]
) -> Float32[Tensor, "queries items"]:
    """Write exp(logit − subtracted) over logits that are at most about as large; returns them."""
    kernels = _kernels(logits, logits.shape[1])
    if kernels is None:
        return logits.sub_(subtracted.unsqueeze(1)).exp_()
    lines = array(subtracted.contiguous())
    run_parts(kernels.exponentiate, _num_parts(logits), array(logits), lines)
    return logits


def _kernels(numbers: Float32[Tensor, "lines n"], times: int) -> Any:
    if is_plain_float(numbers) and is_worthwhile(len(numbers) * times, _LEAST_LOGITS):
        return compiled("softmax.masses_numba")
    return None


def _num_parts(logits: Float32[Tensor, "queries items"]) -> int:
    return num_parts(logits.numel(), _LEAST_PER_THREAD)
