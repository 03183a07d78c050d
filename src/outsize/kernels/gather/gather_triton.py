"""Rows gathered and pooled on CUDA, one Triton kernel each; nothing here synchronizes the device.

A program copies a tile of lines, all columns of each at once if they fit: small rows share a
program, and large ones are spread over its threads, 16 bytes each.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int, Int64
from torch import Tensor

from outsize.kernels.gather.gather import Bags
from outsize.kernels.launches_triton import ceil_div, launch, power_of_two
from outsize.kernels.launching import on_device
from outsize.kernels.rows.rounding_triton import as_float, as_words

TILE = 4096  # numbers that a program copies
POOLED_TILE = 1024  # numbers that a warp sums
_WARPS = 4
_MOST_COLUMNS = 1024


def columns_at_once(dim: int) -> int:
    """The number of columns of a tile: a power of two."""
    return min(power_of_two(max(dim, 1)), _MOST_COLUMNS)


def read_columns_by_triton(
    rows: Float[Tensor, "rows dim"],
    ids: Int64[Tensor, "n columns"],
    bounds: Int64[Tensor, " columns"],
    offsets: Int64[Tensor, " columns"],
    worst: Int64[Tensor, " columns"],
    keys: Int[Tensor, " n*columns"],
) -> Float[Tensor, "n*columns dim"]:
    """Rows for unchecked ids, one line each.

    An id out of bounds reads row 0 of its table, and raises `worst` of its column to itself if it
    is greater.

    Args:
        rows: The table.
        ids: Ids of several tables, one after the other in `rows`; with any strides.
        bounds: The ids of a column are below its bound.
        offsets: What to add to each column.
        worst: The greatest id of each column that was out of bounds.
        keys: Receives the row of each id.
    """
    num, dim = ids.numel(), rows.shape[1]
    out = torch.empty(num, dim, device=rows.device)
    if num:
        words, form = as_words(rows)
        width = columns_at_once(dim)
        lines = max(TILE // width, 1)
        with on_device(rows):
            launch(
                read_columns_kernel, (ceil_div(num, lines),),
                (words, ids, bounds, offsets, worst, keys, out, num, ids.shape[1], *ids.stride()),
                FORMAT=form, DIM=dim, WIDTH=width, LINES=lines, num_warps=_WARPS,
            )  # fmt: skip
    return out


def read_lines_by_triton(
    rows: Float[Tensor, "rows dim"], places: Int[Tensor, " n"], bags: Bags | None
) -> Float[Tensor, "lines dim"]:
    """`gather.read_lines`, as float32."""
    dim = rows.shape[1]
    words, form = as_words(rows)
    width = columns_at_once(dim)
    if bags is None:
        num, lines = places.shape[0], max(TILE // width, 1)
        out = torch.empty(num, dim, device=rows.device)
        if num:
            with on_device(rows):
                launch(
                    read_rows_kernel, (ceil_div(num, lines),),
                    (words, places.contiguous(), out, num),
                    FORMAT=form, DIM=dim, WIDTH=width, LINES=lines, num_warps=_WARPS,
                )  # fmt: skip
        return out
    num, lines = bags.num_bags, max(POOLED_TILE // width, 1)
    out = torch.empty(num, dim, device=rows.device)
    if num:
        scales = out if bags.scales is None else bags.scales.contiguous()
        with on_device(rows):
            launch(
                pool_rows_kernel, (ceil_div(num, lines),),
                (words, places.contiguous(), bags.edges.contiguous(), scales, out, num,
                 places.shape[0]),
                FORMAT=form, DIM=dim, WIDTH=width, LINES=lines,
                HAS_SCALES=bags.scales is not None, num_warps=1,
            )  # fmt: skip
    return out


@triton.jit
@no_type_check
def _copy_lines(
    table, row, out, place, is_inside, FORMAT: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr
):
    """Copy rows to lines of `out`."""
    for first in tl.static_range(0, DIM, WIDTH):
        column = first + tl.arange(0, WIDTH)
        mask = is_inside[:, None] & (column < DIM)[None, :]
        words = tl.load(table + row.to(tl.int64)[:, None] * DIM + column[None, :], mask=mask)
        target = out + place.to(tl.int64)[:, None] * DIM + column[None, :]
        tl.store(target, as_float(words, FORMAT), mask=mask, cache_modifier=".cs")


@triton.jit(do_not_specialize=["num", "num_columns", "line_stride", "column_stride"])
@no_type_check
def read_columns_kernel(
    table, ids, bounds, offsets, worst, keys, out, num, num_columns, line_stride, column_stride,
    FORMAT: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Check a tile of ids, add the offset of their column, and copy their rows."""
    place = tl.program_id(0) * LINES + tl.arange(0, LINES)
    is_inside = place < num
    column = place % num_columns
    source = (place // num_columns).to(tl.int64) * line_stride
    source += column.to(tl.int64) * column_stride
    found = tl.load(ids + source, mask=is_inside, other=0)
    bound = tl.load(bounds + column, mask=is_inside, other=1)
    is_bad = is_inside & ((found < 0) | (found >= bound))
    tl.atomic_max(worst + column, found, mask=is_bad, sem="relaxed")
    offset = tl.load(offsets + column, mask=is_inside, other=0)
    row = tl.where(is_bad, 0, found) + offset
    tl.store(keys + place, row.to(keys.dtype.element_ty), mask=is_inside)
    _copy_lines(table, row, out, place, is_inside, FORMAT, DIM, WIDTH)


@triton.jit(do_not_specialize=["num"])
@no_type_check
def read_rows_kernel(
    table, places, out, num,
    FORMAT: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Copy the rows at a tile of places."""
    place = tl.program_id(0) * LINES + tl.arange(0, LINES)
    is_inside = place < num
    row = tl.load(places + place, mask=is_inside, other=0)
    _copy_lines(table, row, out, place, is_inside, FORMAT, DIM, WIDTH)


@triton.jit(do_not_specialize=["num", "num_places"])
@no_type_check
def pool_rows_kernel(
    table, places, edges, scales, out, num, num_places,
    FORMAT: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, LINES: tl.constexpr,
    HAS_SCALES: tl.constexpr,
):  # fmt: skip
    """Sum the rows of a tile of bags, each in order."""
    bag = tl.program_id(0) * LINES + tl.arange(0, LINES)
    is_inside = bag < num
    begin = tl.maximum(tl.load(edges + bag, mask=is_inside, other=0), 0)
    end = tl.minimum(tl.load(edges + bag + 1, mask=is_inside, other=0), num_places)
    longest = tl.max(end - begin, axis=0)
    for first in tl.static_range(0, DIM, WIDTH):
        column = first + tl.arange(0, WIDTH)
        in_dim = (column < DIM)[None, :]
        total = tl.zeros((LINES, WIDTH), tl.float32)
        for step in range(longest):
            place = begin + step
            is_there = place < end
            row = tl.load(places + place, mask=is_there, other=0).to(tl.int64)
            mask = is_there[:, None] & in_dim
            words = tl.load(table + row[:, None] * DIM + column[None, :], mask=mask, other=0)
            numbers = as_float(words, FORMAT)
            if HAS_SCALES:
                numbers *= tl.load(scales + place, mask=is_there, other=0.0)[:, None]
            total += numbers
        target = out + bag.to(tl.int64)[:, None] * DIM + column[None, :]
        tl.store(target, total, mask=is_inside[:, None] & in_dim)
