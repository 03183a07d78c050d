"""The passes over whole lines of copies on CUDA: add, settle, refresh and read.

A program works on a tile of lines, all columns at once, so that a line is read and written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from outsize.kernels.launches_triton import ceil_div, launch, power_of_two
from outsize.kernels.launching import on_device

if TYPE_CHECKING:
    from outsize.kernels.copies.local_lines import OwnerLines
    from outsize.kernels.copies.passes import CopyLines

_TILE = 2048  # numbers per program


def add_by_triton(
    copies: CopyLines,
    slots: Tensor,
    gradients: Tensor,
    squares: Tensor | None,
    divisor: int | None,
    saved_bytes: int,
    places: Tensor,
) -> Tensor:
    """Add lines at some places to what is pending; returns those lines, divided, or the totals."""
    num, dim = places.shape[0], gradients.shape[1]
    found = torch.empty(num, dim, device=gradients.device)
    if num:
        summed = copies.squares
        has_squares = squares is not None and summed is not None
        if squares is None or summed is None:
            squares = summed = found  # unused
        width = squares.shape[1]
        lines, columns = tile(max(dim, width))
        with on_device(slots):
            launch(
                add_kernel, (ceil_div(num, lines),),
                (slots, places, gradients.contiguous(), copies.pending, squares.contiguous(),
                 summed, copies.balance, found, num, dim, width, float(divisor or 1), saved_bytes),
                SUMS=divisor is None, HAS_SQUARES=has_squares, LINES=lines, COLUMNS=columns,
            )  # fmt: skip
    return found


def settle_by_triton(
    copies: CopyLines,
    slots: Tensor,
    gradients: Tensor,
    ticks: Tensor,
    sent: Tensor,
    saved_bytes: int,
    keeps_error: bool,
) -> None:
    """`settle`."""
    num, dim = gradients.shape
    if num:
        squares = copies.pending if copies.squares is None else copies.squares
        width = squares.shape[1]
        lines, columns = tile(max(dim, width))
        with on_device(slots):
            launch(
                settle_kernel, (ceil_div(num, lines),),
                (slots, gradients.contiguous(), ticks, sent.contiguous(), copies.clocks,
                 copies.ticks, copies.pending, squares, copies.leftover, copies.balance, num,
                 dim, width, saved_bytes),
                KEEPS_ERROR=keeps_error, HAS_SQUARES=copies.squares is not None, LINES=lines,
                COLUMNS=columns,
            )  # fmt: skip


def read_through_by_triton(
    copies: CopyLines,
    state: Mapping[str, Tensor],
    owner: OwnerLines,
    ids: Tensor,
    slots: Tensor,
    stale: Tensor,
    num_refreshed: int,
) -> tuple[Tensor, Tensor]:
    """`read_through`."""
    num, dim = ids.shape[0], owner.rows.shape[1]
    rows = torch.empty(num, dim, dtype=owner.rows.dtype, device=ids.device)
    clocks = torch.empty_like(ids)
    with on_device(ids):
        lines, columns = tile(dim)
        launch(
            read_kernel, (ceil_div(num, lines),),
            (ids, slots, stale, owner.rows, owner.clocks, copies.rows, copies.clocks,
             copies.ticks, rows, clocks, num, dim),
            LINES=lines, COLUMNS=columns,
        )  # fmt: skip
        for name, part in owner.state.items() if num_refreshed else ():
            width = part.shape[1]
            lines, columns = tile(width)
            launch(
                copy_kernel, (ceil_div(num, lines),),
                (ids, slots, stale, part, state[name], num, width),
                LINES=lines, COLUMNS=columns,
            )  # fmt: skip
    return rows, clocks


def tile(width: int) -> tuple[int, int]:
    """Lines and columns of a tile."""
    columns = power_of_two(width)
    return min(256, max(1, _TILE // columns)), columns


@triton.jit(do_not_specialize=["num"])
@no_type_check
def add_kernel(
    slots, places, gradients, pending, squares, pending_squares, balance, found,
    num, dim, width, divisor, saved_bytes,
    SUMS: tl.constexpr, HAS_SQUARES: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add lines to what is pending for copies."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    is_line = line < num
    place = tl.load(places + line, mask=is_line, other=0)
    slot = tl.load(slots + place, mask=is_line, other=0)
    saved = tl.load(balance + slot, mask=is_line, other=0)
    tl.store(balance + slot, saved + saved_bytes, mask=is_line)
    column = tl.arange(0, COLUMNS)[None, :]
    mask = is_line[:, None] & (column < dim)
    added = tl.load(gradients + place[:, None] * dim + column, mask=mask, other=0.0)
    at = pending + slot[:, None] * dim + column
    total = tl.load(at, mask=mask, other=0.0) + added
    tl.store(at, total, mask=mask)
    out = total if SUMS else tl.div_rn(added, tl.zeros_like(added) + divisor)
    tl.store(found + line[:, None] * dim + column, out, mask=mask)
    if HAS_SQUARES:
        mask = is_line[:, None] & (column < width)
        square = tl.load(squares + place[:, None] * width + column, mask=mask, other=0.0)
        at = pending_squares + slot[:, None] * width + column
        tl.store(at, tl.load(at, mask=mask, other=0.0) + square, mask=mask)


@triton.jit(do_not_specialize=["num"])
@no_type_check
def settle_kernel(
    slots, gradients, pushed_ticks, sent, clocks, ticks, pending, squares, leftover, balance,
    num, dim, width, saved_bytes,
    KEEPS_ERROR: tl.constexpr, HAS_SQUARES: tl.constexpr, LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Clear what was pushed, but for the errors of rounding."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    is_line = line < num
    slot = tl.load(slots + line, mask=is_line, other=0)
    clock = tl.load(clocks + slot, mask=is_line, other=-1)
    clock += tl.load(pushed_ticks + line, mask=is_line, other=0)
    is_held = is_line & (tl.load(clocks + slot, mask=is_line, other=-1) >= 0)
    tl.store(clocks + slot, clock, mask=is_held)
    tl.store(ticks + slot, tl.zeros_like(slot).to(tl.int32), mask=is_line)
    saved = tl.load(balance + slot, mask=is_line, other=0)
    tl.store(balance + slot, saved - saved_bytes, mask=is_line)
    column = tl.arange(0, COLUMNS)[None, :]
    mask = is_line[:, None] & (column < dim)
    at = line[:, None] * dim + column
    error = tl.load(gradients + at, mask=mask, other=0.0) - tl.load(sent + at, mask=mask, other=0.0)
    tl.store(pending + slot[:, None] * dim + column, error, mask=mask)
    if KEEPS_ERROR:
        is_off = tl.max(tl.abs(error), axis=1) > 0
        tl.store(leftover + slot, is_off, mask=is_line)
    if HAS_SQUARES:
        mask = is_line[:, None] & (column < width)
        tl.store(squares + slot[:, None] * width + column, error * 0.0, mask=mask)


@triton.jit(do_not_specialize=["num"])
@no_type_check
def read_kernel(
    ids, slots, stale, owner_rows, owner_clocks, rows, clocks, ticks, out, seen, num, dim,
    LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Read lines of copies, or of the owner if they are stale, which refreshes the copies."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    is_line = line < num
    row = tl.load(ids + line, mask=is_line, other=0)
    slot = tl.load(slots + line, mask=is_line, other=-1)
    is_stale = is_line & (tl.load(stale + line, mask=is_line, other=0) != 0)
    has_copy = slot >= 0
    is_read = is_line & has_copy & (is_stale == 0)
    clock = tl.load(owner_clocks + row, mask=is_stale, other=0).to(tl.int64)
    clock += tl.load(clocks + slot, mask=is_read, other=0)
    tl.store(clocks + slot, clock, mask=is_stale & has_copy)
    num_ticks = tl.load(ticks + slot, mask=is_line & has_copy, other=0)
    tl.store(seen + line, clock + num_ticks, mask=is_line)
    column = tl.arange(0, COLUMNS)[None, :]
    is_column = column < dim
    at_copy = slot[:, None] * dim + column
    sent = tl.load(
        owner_rows + row[:, None] * dim + column, mask=is_stale[:, None] & is_column, other=0.0
    )
    held = tl.load(rows + at_copy, mask=is_read[:, None] & is_column, other=0.0)
    tl.store(rows + at_copy, sent, mask=(is_stale & has_copy)[:, None] & is_column)
    values = tl.where(is_stale[:, None], sent, held)
    tl.store(out + line[:, None] * dim + column, values, mask=is_line[:, None] & is_column)


@triton.jit(do_not_specialize=["num"])
@no_type_check
def copy_kernel(
    ids, slots, stale, owner_lines, lines, num, width, LINES: tl.constexpr, COLUMNS: tl.constexpr
):
    """Copy lines of an owner to stale copies."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    is_line = line < num
    row = tl.load(ids + line, mask=is_line, other=0)
    slot = tl.load(slots + line, mask=is_line, other=-1)
    is_stale = (tl.load(stale + line, mask=is_line, other=0) != 0) & (slot >= 0)
    column = tl.arange(0, COLUMNS)[None, :]
    mask = is_stale[:, None] & (column < width)
    sent = tl.load(owner_lines + row[:, None] * width + column, mask=mask, other=0.0)
    tl.store(lines + slot[:, None] * width + column, sent, mask=mask)
