"""The mean of the items' vectors under a softmax on CUDA: probabilities by Triton, then a product.

Nothing here synchronizes the device.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float32
from torch import Tensor

from outsize.kernels.ragged import Ragged
from outsize.kernels.softmax.logit_tiles import multiply_parts
from outsize.kernels.softmax.scored_items import Excluded, ScoredItems, as_lists
from outsize.kernels.softmax.triton.shares import softmax_shares_kernel
from outsize.kernels.softmax.triton.tile_launches import launch_over_tiles, limits, on_device
from outsize.kernels.softmax.tuning import default_tuning

_SHARES_PER_PASS = 1 << 25
_QUERIES_PER_PASS = 4096
_ITEMS_PER_STEP = 1024
_SPARE = 8  # extra columns: keep rows aligned, and receive writes for items of other passes


def mean_by_triton(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    log_partition: Float32[Tensor, " num_queries"],
    excluded: Excluded = None,
) -> Float32[Tensor, "num_queries dim"]:
    """`softmax_mean` for items that are not float32."""
    mean = torch.zeros_like(queries)
    lists = as_lists(excluded)
    with on_device(queries):
        for start in range(0, len(queries), _QUERIES_PER_PASS):
            some = slice(start, start + _QUERIES_PER_PASS)
            pairs = None if lists is None else _pairs_of(lists, start)
            _add_mean(mean[some], queries[some].bfloat16(), items, log_partition[some], pairs)
    return mean


def _pairs_of(excluded: Ragged, start: int) -> tuple[Tensor, Tensor]:
    """The lines of excluded pairs relative to `start`, and their rows; −1 outside of this pass."""
    lines, rows = excluded.lines(), excluded.values
    if excluded.num_lines <= _QUERIES_PER_PASS:
        return lines, rows
    is_here = (lines >= start) & (lines < start + _QUERIES_PER_PASS)
    return torch.where(is_here, lines - start, 0), torch.where(is_here, rows, -1)


def _add_mean(
    mean: Tensor,
    queries: Tensor,
    items: ScoredItems,
    log_partition: Tensor,
    excluded: tuple[Tensor, Tensor] | None,
) -> None:
    num_queries, dim = queries.shape
    tuning = default_tuning(
        num_queries, items.num_items, dim, items.vectors.dtype, 1, limits(queries.device)
    )
    if tuning.descriptors:  # shared memory has space for the tiles of shares of two programs
        tuning = replace(tuning, num_stages=2, programs_per_processor=2)
    # exp(logit − inf) is 0, also if the logit is −inf.
    whole = log_partition.masked_fill(log_partition == -torch.inf, torch.inf)
    steps = max(1, _SHARES_PER_PASS // (num_queries * _ITEMS_PER_STEP))
    width = min(steps * _ITEMS_PER_STEP, -(-items.num_items // _SPARE) * _SPARE)
    coarse, rest = queries.new_empty(2, num_queries, width + _SPARE)
    lines, rows = (None, None) if excluded is None else excluded
    first = None if lines is None else lines * (width + _SPARE)
    for start in range(0, items.num_items, width):
        some = items.part(slice(start, start + width))
        launch_over_tiles(
            softmax_shares_kernel, queries, some, tuning, (whole,), width + _SPARE, (coarse, rest)
        )
        if rows is not None and first is not None:
            places = rows - start
            is_inside = (places >= 0) & (places < some.num_items)
            places = torch.where(is_inside, places, width) + first
            for shares in (coarse, rest):
                shares.view(-1).scatter_(0, places, 0.0)
        inside = slice(some.num_items)
        mean += multiply_parts(coarse[:, inside], rest[:, inside], some.vectors.bfloat16())
    mean.masked_fill_(log_partition.isnan().unsqueeze(1), torch.nan)
