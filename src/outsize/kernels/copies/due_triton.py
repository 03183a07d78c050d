"""The passes of `due`, and `clear` of `passes`, on CUDA, one kernel each."""

from __future__ import annotations

from typing import TYPE_CHECKING, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from outsize.kernels.copies.lines_triton import tile
from outsize.kernels.launches_triton import launch
from outsize.kernels.launching import on_device

if TYPE_CHECKING:
    from outsize.kernels.copies.passes import CopyLines

_BLOCK_SIZE = 256
_MOST_TICKS = (1 << 31) - 1


def mark_due_by_triton(
    ticks: Tensor,
    touched: Tensor,
    write_staleness: float,
    is_evicted: Tensor | None,
    count: Tensor,
) -> Tensor:
    """`mark_due`, for at least one slot."""
    num = touched.shape[0]
    is_due = torch.empty(num, dtype=torch.bool, device=touched.device)
    with on_device(touched):
        launch(
            due_kernel, (-(-num // _BLOCK_SIZE),),
            (touched.contiguous(), ticks, is_due if is_evicted is None else is_evicted, is_due,
             count, num, int(min(write_staleness, _MOST_TICKS))),
            HAS_EVICTED=is_evicted is not None, BLOCK_SIZE=_BLOCK_SIZE,
        )  # fmt: skip
    return is_due


def pending_by_triton(
    copies: CopyLines, held: Tensor, listed: Tensor, places: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """`pending_at`, for at least one place."""
    num, dim = places.shape[0], copies.pending.shape[1]
    slots, ids, ticks = (torch.empty_like(places) for _ in range(3))
    gradients = torch.empty(num, dim, device=places.device)
    summed, squares = copies.squares, None
    width = 0
    if summed is not None:
        width = summed.shape[1]
        squares = torch.empty(num, width, device=places.device)
    lines, columns = tile(max(dim, width))
    with on_device(places):
        launch(
            pending_kernel, (-(-num // lines),),
            (listed, places, held, copies.ticks, copies.pending,
             gradients if summed is None else summed, slots, ids, ticks, gradients,
             gradients if squares is None else squares, num, dim, width),
            HAS_SQUARES=summed is not None, LINES=lines, COLUMNS=columns,
        )  # fmt: skip
    return slots, ids, gradients, ticks, squares


def clear_by_triton(copies: CopyLines, slots: Tensor) -> None:
    """`clear`."""
    num, dim = slots.shape[0], copies.pending.shape[1]
    if not num:
        return
    squares = copies.pending if copies.squares is None else copies.squares
    width = squares.shape[1]
    lines, columns = tile(max(dim, width))
    with on_device(slots):
        launch(
            clear_kernel, (-(-num // lines),),
            (slots.contiguous(), copies.clocks, copies.ticks, copies.leftover, copies.checks,
             copies.balance, copies.pending, squares, num, dim, width),
            LINES=lines, COLUMNS=columns,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num"])
@no_type_check
def clear_kernel(
    slots, clocks, ticks, leftover, checks, balance, pending, squares, num, dim, width,
    LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Empty lines of several tensors; pending gradients may be passed as squares, too."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    is_line = line < num
    slot = tl.load(slots + line, mask=is_line, other=0)
    none = tl.zeros_like(slot)
    tl.store(clocks + slot, none - 1, mask=is_line)
    tl.store(ticks + slot, none.to(tl.int32), mask=is_line)
    tl.store(leftover + slot, none != 0, mask=is_line)
    tl.store(checks + slot, none.to(tl.int32), mask=is_line)
    tl.store(balance + slot, none, mask=is_line)
    column = tl.arange(0, COLUMNS)[None, :]
    zeros = tl.zeros([LINES, COLUMNS], tl.float32)
    at = pending + slot[:, None] * dim + column
    tl.store(at, zeros, mask=is_line[:, None] & (column < dim))
    at = squares + slot[:, None] * width + column
    tl.store(at, zeros, mask=is_line[:, None] & (column < width))


@triton.jit(do_not_specialize=["num"])
@no_type_check
def due_kernel(
    touched, ticks, is_evicted, is_due, count, num, write_staleness,
    HAS_EVICTED: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Mark slots with many ticks, and count them by atomic additions of whole numbers."""
    lane = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    slot = tl.load(touched + lane, mask=lane < num, other=0)
    marked = (lane < num) & (tl.load(ticks + slot, mask=lane < num, other=0) > write_staleness)
    if HAS_EVICTED:
        marked = marked & (tl.load(is_evicted + slot, mask=lane < num, other=0) == 0)
    tl.store(is_due + lane, marked, mask=lane < num)
    tl.atomic_add(count, tl.sum(marked.to(tl.int64), axis=0), sem="relaxed")


@triton.jit(do_not_specialize=["num"])
@no_type_check
def pending_kernel(
    listed, places, held, ticks, pending, squares,
    slots_out, ids_out, ticks_out, gradients_out, squares_out, num, dim, width,
    HAS_SQUARES: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Copy lines of several tensors at some slots."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    is_line = line < num
    slot = tl.load(listed + tl.load(places + line, mask=is_line, other=0), mask=is_line, other=0)
    tl.store(slots_out + line, slot, mask=is_line)
    tl.store(ids_out + line, tl.load(held + slot, mask=is_line, other=0), mask=is_line)
    num_ticks = tl.load(ticks + slot, mask=is_line, other=0).to(tl.int64)
    tl.store(ticks_out + line, num_ticks, mask=is_line)
    column = tl.arange(0, COLUMNS)[None, :]
    mask = is_line[:, None] & (column < dim)
    gradient = tl.load(pending + slot[:, None] * dim + column, mask=mask, other=0.0)
    tl.store(gradients_out + line[:, None] * dim + column, gradient, mask=mask)
    if HAS_SQUARES:
        mask = is_line[:, None] & (column < width)
        square = tl.load(squares + slot[:, None] * width + column, mask=mask, other=0.0)
        tl.store(squares_out + line[:, None] * width + column, square, mask=mask)
