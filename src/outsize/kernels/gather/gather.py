"""Gather the distinct rows of a batch into one line per id, or one per bag of ids.

The gradient of a row is the sum over its occurrences in the batch. The compiled path sums them by
row, in the order of the batch and in blocks of fixed size: the result does not depend on the number
of threads, and differs from that of torch by the rounding of float32 sums only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float32, Int32, Int64
from torch import Tensor

from outsize.kernels.arrays import array, empty, is_plain_float
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.distinct.distinct import LEAST_IDS, Distinct, Places
from outsize.kernels.threads import num_parts, run_parts

_BLOCK = 2048  # occurrences that one thread sums in order
_LEAST_NUMBERS = 1 << 15  # per thread


@dataclass(frozen=True)
class Bags:
    """Bags of ids, for sums.

    Attributes:
        edges: Start of each bag in the list of ids, and the end of the last.
        scales: A factor per id; `None` for 1.
    """

    edges: Int64[Tensor, " edges"]
    scales: Float32[Tensor, " n"] | None = None

    @property
    def num_bags(self) -> int:
        """Number of bags."""
        return self.edges.shape[0] - 1

    def lines(self) -> Int32[Tensor, " n"]:
        """The bag of each id."""
        bags = torch.arange(self.num_bags, dtype=torch.int32)
        return bags.repeat_interleave(self.edges.diff())


def gather(
    rows: Float[Tensor, "distinct dim"], found: Distinct, bags: Bags | None = None
) -> Float[Tensor, "lines dim"]:
    """One line per id of a list, or per bag of ids: the sum of its rows.

    Args:
        rows: The rows of `found.ids`.
        found: The distinct ids of the list.
        bags: How ids form bags; `None` for one line per id.
    """
    kernels = None
    if found.places is not None and is_plain_float(rows):
        kernels = compiled("gather.gather_numba")
    if kernels is not None:
        gathered: Tensor = _Gather.apply(rows, found, bags)
        return gathered
    lines = rows.index_select(0, found.inverse)
    return lines if bags is None else _sum_bags(lines, bags)


def copy_rows(
    rows: Float[Tensor, "rows dim"], places: Int64[Tensor, " n"]
) -> Float[Tensor, "n dim"]:
    """Rows of a large table, without a gradient; the compiled path prefetches them."""
    kernels = None
    if is_worthwhile(places.shape[0], LEAST_IDS) and is_plain_float(rows):
        kernels = compiled("gather.gather_numba")
    if kernels is None:
        return rows.index_select(0, places)
    return _copy(kernels, rows, places)


def sum_gradients(
    gradients: Float32[Tensor, "lines dim"], places: Places, bags: Bags | None = None
) -> Float32[Tensor, "distinct dim"]:
    """Σ of the gradients of each distinct id; only where kernels are compiled.

    Args:
        gradients: One line per id, or per bag.
        places: The places of each distinct id.
        bags: How ids form bags.
    """
    kernels, gradients = compiled("gather.gather_numba"), gradients.contiguous()
    n, dim = places.order.shape[0], gradients.shape[1]
    num_rows, num_blocks = places.starts.shape[0] - 1, -(-n // _BLOCK)
    total = torch.empty(num_rows, dim)
    carried = torch.zeros(num_blocks, dim)
    lines = empty(0, dtype=torch.int32) if bags is None else array(bags.lines())
    run_parts(
        kernels.sum_by_row, num_parts(n * dim, _LEAST_NUMBERS), array(gradients),
        array(places.order), array(places.starts), num_rows, lines, _scales(bags), _BLOCK,
        array(total), array(carried),
    )  # fmt: skip
    if num_blocks > 1:
        kernels.add_carried(array(places.starts), num_rows, _BLOCK, n, array(total), array(carried))
    return total


class _Gather(torch.autograd.Function):
    """`gather`, compiled; its gradient is `_Sum`, whose gradient is `_Gather` again."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, found: Distinct, bags: Bags | None) -> Tensor:
        ctx.found, ctx.bags = found, bags
        kernels = compiled("gather.gather_numba")
        if bags is None:
            return _copy(kernels, rows, found.inverse)
        out = torch.empty(bags.num_bags, rows.shape[1])
        run_parts(
            kernels.pool_rows, num_parts(found.inverse.shape[0] * rows.shape[1], _LEAST_NUMBERS),
            array(rows), array(found.inverse), array(bags.edges), _scales(bags), array(out),
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Any:  # type: ignore[override]
        return _Sum.apply(gradients, ctx.found, ctx.bags), None, None


class _Sum(torch.autograd.Function):
    """The gradient of `_Gather`."""

    @staticmethod
    def forward(ctx: Any, gradients: Tensor, found: Distinct, bags: Bags | None) -> Tensor:
        ctx.found, ctx.bags = found, bags
        assert found.places is not None
        return sum_gradients(gradients, found.places, bags)

    @staticmethod
    def backward(ctx: Any, rows: Tensor) -> Any:  # type: ignore[override]
        return _Gather.apply(rows.contiguous(), ctx.found, ctx.bags), None, None


def _copy(kernels: Any, rows: Tensor, places: Tensor) -> Tensor:
    out = torch.empty(places.shape[0], rows.shape[1])
    parts = num_parts(out.numel(), _LEAST_NUMBERS)
    run_parts(kernels.gather_rows, parts, array(rows), array(places.contiguous()), array(out))
    return out


def _scales(bags: Bags | None) -> Any:
    return empty(0) if bags is None or bags.scales is None else array(bags.scales)


def _sum_bags(lines: Tensor, bags: Bags) -> Tensor:
    if bags.scales is not None:
        lines = lines * bags.scales.to(lines.dtype).unsqueeze(1)
    out = lines.new_zeros(bags.num_bags, lines.shape[1])
    return out.index_add(0, bags.lines().to(lines.device).long(), lines)
