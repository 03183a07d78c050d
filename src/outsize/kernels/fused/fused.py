"""Look-up of a batch, and its backward pass with the update of rows, by compiled kernels.

What they return is what `gather`, `distinct`, `sum_lines` and an update in place return, which are
the reference and do the work where kernels cannot: sums are taken in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from outsize.kernels.arrays import (
    addresses,
    array,
    empty,
    is_plain,
    is_plain_float,
    scratch_array,
)
from outsize.kernels.available import uses_triton
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.distinct.distinct import LEAST_IDS
from outsize.kernels.gather import gather
from outsize.kernels.gather.gather import Bags
from outsize.kernels.rows.in_place import Rule, settings_array, state_arrays
from outsize.kernels.threads import num_parts, run_parts

_LEAST_PER_THREAD = 2048  # ids
_BUCKET_IDS = 4096
_MOST_BUCKET_BITS = 12
_MOST_BITS = 31
_LINE = 32  # counters; two parts must not write to one cache line
_LARGEST = torch.finfo(torch.float32).max
_FACTOR = 0x9E3779B1  # an odd number near 2³² divided by the golden ratio


@dataclass(frozen=True)
class RowsInPlace:
    """A table in this process, with all that an update changes.

    Attributes:
        rows: The rows.
        state: Optimizer state by name, a line per row.
        clocks: A clock per row.
        start: The store id of the first row.
        seed: The seed of the store, for stochastic rounding.
    """

    rows: Float[Tensor, "rows dim"]
    state: Mapping[str, Float[Tensor, "rows _"]]
    clocks: Int32[Tensor, " rows"]
    start: int = 0
    seed: int = 0


def read_columns(
    rows: Float[Tensor, "rows dim"],
    columns: Sequence[Int64[Tensor, " n"]],
    bounds: Int64[Tensor, " columns"],
    offsets: Int64[Tensor, " columns"],
) -> tuple[Int64[Tensor, " _"], Float[Tensor, "_ dim"]] | None:
    """Rows of columns of ids, by example: all columns of the first, then of the second, and so on.

    Returns the ids with their offsets, and the lines; `None` if an id is out of bounds, or no
    kernel can be used.

    Args:
        rows: The table.
        columns: Ids, as many in each column.
        bounds: The ids of a column are below its bound.
        offsets: What to add to each column.
    """
    num, width, dim = columns[0].shape[0], len(columns), rows.shape[1]
    if not (is_worthwhile(num * width, LEAST_IDS) and is_plain_float(rows) and is_plain(*columns)):
        return None
    kernels = compiled("fused.fused_numba")
    if kernels is None:
        return None
    columns = [column.contiguous() for column in columns]
    parts = num_parts(num * width, _LEAST_PER_THREAD)
    ids, lines = torch.empty(num * width, dtype=torch.int64), torch.empty(num * width, dim)
    num_bad = np.empty(parts, dtype=np.uint32)
    run_parts(
        kernels.read_columns, parts, array(rows), addresses(columns), num, array(bounds),
        array(offsets), array(ids), array(lines), num_bad,
    )  # fmt: skip
    return None if num_bad.any() else (ids, lines)


def train_rows(
    table: RowsInPlace,
    rule: Rule,
    ids: Int64[Tensor, " n"],
    bags: Bags | None,
    gradients: Float[Tensor, "lines dim"],
    squared_norm: Float[Tensor, ""] | None = None,
) -> bool:
    """Update the rows of a batch by the gradients of its lines, each row once.

    Returns false, without a change, if no kernel can be used, or a sum of gradients may be NaN or
    infinite: the caller then takes the steps one by one, and sees which.

    Args:
        table: The rows.
        rule: How to update them.
        ids: Store ids of the table.
        bags: How ids form the lines; `None` for one line per id.
        gradients: One per line.
        squared_norm: Σ over rows of the squares of Σg is added to it.
    """
    n, dim = ids.shape[0], gradients.shape[1]
    num_rows = table.rows.shape[0]
    bits = max(num_rows - 1, 1).bit_length()
    gradients = gradients.detach().contiguous()
    if not (
        is_worthwhile(n, LEAST_IDS)
        and n < 1 << 31
        and bits <= _MOST_BITS
        and is_plain_float(table.rows, gradients, *table.state.values())
        and is_plain(ids)
    ):
        return False
    kernels, buckets = compiled("fused.fused_numba"), compiled("fused.buckets_numba")
    if kernels is None or buckets is None:
        return False
    parts = num_parts(n, _LEAST_PER_THREAD)
    scales = None if bags is None else bags.scales
    if not _is_small(kernels, gradients, parts, n, scales):
        return False
    bucket_bits = min((n // _BUCKET_IDS).bit_length(), _MOST_BUCKET_BITS, bits)
    num_buckets, digits = 1 << bucket_bits, 1 << (bits - bucket_bits + 1) // 2
    factor, inverse = _factors(bits)
    counts = scratch_array("counts", np.uint32, 2, parts, max(num_buckets, _LINE))
    edges = scratch_array("edges", np.int32, num_buckets + 2)
    words = scratch_array("words", np.uint64, n)
    given = (array(ids.contiguous()), table.start, factor, bits, bucket_bits)
    run_parts(buckets.count_buckets, parts, *given, counts[0])
    run_parts(buckets.fill_buckets, parts, *given, counts[0], counts[1], edges, words)
    most = 1 << int(edges[-1]).bit_length()  # ids of a bucket; a power of two seldom changes
    parts = min(parts, num_buckets)
    number, settings = rule
    lines = None if bags is None else bags.lines()
    norms = np.empty(num_buckets, dtype=np.float64)
    run_parts(
        kernels.train_buckets, parts, number, array(table.rows), *state_arrays(table.state),
        array(table.clocks), settings_array(settings), array(gradients),
        empty(0, dtype=torch.int32) if lines is None else array(lines),
        empty(0) if scales is None else array(scales),
        words, edges[:-1], inverse, bits, bucket_bits, gather.BLOCK,
        scratch_array("digits", np.uint32, parts, 2, digits),
        scratch_array("spare", np.uint64, parts, most),
        scratch_array("rows", np.int64, parts, most),
        scratch_array("places", np.int32, parts, 4, most),
        scratch_array("totals", np.float32, parts, 2, max(dim, _LINE)),
        np.zeros(1, dtype=np.int64), norms,
    )  # fmt: skip
    if squared_norm is not None:
        squared_norm += float(norms.sum())
    return True


def update_on_device(
    table: RowsInPlace,
    rule: Rule | None,
    places: Int64[Tensor, " n"],
    gradients: Float[Tensor, "n dim"],
    ticks: Int64[Tensor, " n"],
    squares: Float[Tensor, "n width"] | None,
) -> bool:
    """Update rows, state and clocks in place on CUDA; returns false, without a change, elsewhere.

    Args:
        table: The rows.
        rule: How to update them; `None` if that has no kernel.
        places: The rows to update, each once.
        gradients: Their gradients.
        ticks: The increments of their clocks.
        squares: What replaces their squared gradients, if anything.
    """
    if rule is None or not gradients.shape[1] or not uses_triton(table.rows, places):
        return False
    from outsize.kernels.rows.updates_triton import can_update, update_by_triton

    if not can_update(table.rows, table.state):
        return False
    number, values = rule
    update_by_triton(
        number, _settings_on(table.rows.device, values), table.rows, table.state, table.clocks,
        places, gradients.contiguous(),
        seed=table.seed, first_id=table.start, ticks=ticks,
        squares=None if squares is None else squares.contiguous(),
    )  # fmt: skip
    return True


@lru_cache(maxsize=16)
def _settings_on(device: torch.device, values: tuple[float, ...]) -> Float[Tensor, " settings"]:
    """Settings of a rule on a device: from pinned memory, so that the host does not wait."""
    settings = torch.tensor(values, pin_memory=device.type == "cuda")
    return settings.to(device, non_blocking=True)


@cache
def _factors(bits: int) -> tuple[np.uint64, np.uint64]:
    """An odd factor of at most so many bits, and the one that undoes it modulo 2^bits."""
    factor = _FACTOR & ((1 << bits) - 1) | 1
    return np.uint64(factor), np.uint64(pow(factor, -1, 1 << bits))


def _is_small(kernels: Any, gradients: Tensor, parts: int, n: int, scales: Tensor | None) -> bool:
    """Whether all sums of `n` of these numbers are finite."""
    largest = 1.0 if scales is None or not scales.numel() else float(scales.abs().max())
    if not largest < float("inf"):
        return False
    limit = np.float32(_LARGEST / (2.0 * max(n, 1) * max(largest, 1.0)))
    counts = np.empty(parts, dtype=np.uint32)
    bits = array(gradients).reshape(-1).view("uint32")
    run_parts(kernels.count_large, parts, bits, limit.view(np.uint32), counts)
    return not counts.any()
