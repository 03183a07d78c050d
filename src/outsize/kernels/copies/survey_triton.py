"""`survey` on CUDA, as one kernel: masks, and counts by atomic additions of whole numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from outsize.kernels.copies.passes import CopyLines
from outsize.kernels.launches_triton import ceil_div, launch
from outsize.kernels.launching import on_device

if TYPE_CHECKING:
    from outsize.kernels.copies.survey import Prices

_BLOCK_SIZE = 256
_MOST_TICKS = (1 << 31) - 1


def survey_by_triton(
    copies: CopyLines,
    found: Tensor,
    owner_clocks: Tensor,
    ids: Tensor,
    read_staleness: int | None,
    write_staleness: float,
    prices: Prices,
    lag_offset: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Stale, again and costly rows, and the counts of `Survey`; checks are counted."""
    n = ids.shape[0]
    stale, again, costly = (torch.empty(n, dtype=torch.bool, device=ids.device) for _ in range(3))
    counts = torch.zeros(6, dtype=torch.int64, device=ids.device)
    with on_device(ids):
        launch(
            survey_kernel, (ceil_div(n, _BLOCK_SIZE),),
            (found, ids, owner_clocks, copies.clocks, copies.ticks, copies.leftover,
             copies.checks, copies.balance, stale, again, costly, counts, n, read_staleness or 0,
             int(min(write_staleness, _MOST_TICKS)), *prices, lag_offset),
            HAS_CHECKS=read_staleness is not None, BLOCK_SIZE=_BLOCK_SIZE,
        )  # fmt: skip
    return stale, again, costly, counts


@triton.jit(do_not_specialize=["num"])
@no_type_check
def survey_kernel(
    found, ids, owner_clocks, clocks, ticks, leftover, checks, balance,
    stale, again, costly, counts, num, read_staleness, write_staleness,
    row_bytes, check_bytes, least_checks, lag_offset,
    HAS_CHECKS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Masks of lines, counts of all lines, and checks of copies."""
    lane = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    is_line = lane < num
    own = tl.load(found + lane, mask=is_line, other=-1)
    row = tl.load(ids + lane, mask=is_line, other=0)
    has_copy = own >= 0
    held_clock = tl.load(clocks + own, mask=has_copy, other=-1)
    is_held = has_copy & (held_clock >= 0)
    ahead = tl.load(owner_clocks + row, mask=is_held, other=0).to(tl.int64) - held_clock
    is_hit = is_held
    if HAS_CHECKS:
        is_hit = is_held & (ahead <= read_staleness)
    num_ticks = tl.load(ticks + own, mask=has_copy, other=0)
    is_left = tl.load(leftover + own, mask=has_copy, other=0) != 0
    is_due = num_ticks > write_staleness
    is_dirty = ((num_ticks > 0) | is_left) & (is_due == 0)
    is_again = has_copy & (is_hit == 0) & is_dirty
    is_costly = is_held & (is_held == 0)
    if HAS_CHECKS:
        num_checks = tl.load(checks + own, mask=is_held, other=0) + 1
        tl.store(checks + own, num_checks, mask=is_held)
        saved = tl.load(balance + own, mask=is_held, other=0) - check_bytes
        saved = tl.where(is_hit, saved + row_bytes, saved)
        tl.store(balance + own, saved, mask=is_held)
        saved = tl.where(is_due, saved - row_bytes, saved)
        is_costly = is_held & (num_checks >= least_checks) & (saved < 0) & (is_dirty == 0)
    tl.store(stale + lane, is_hit == 0, mask=is_line)
    tl.store(again + lane, is_again, mask=is_line)
    tl.store(costly + lane, is_costly, mask=is_line)
    tl.atomic_add(counts, tl.sum(has_copy.to(tl.int64), axis=0), sem="relaxed")
    tl.atomic_add(counts + 1, tl.sum(is_hit.to(tl.int64), axis=0), sem="relaxed")
    tl.atomic_add(counts + 2, tl.sum(is_again.to(tl.int64), axis=0), sem="relaxed")
    tl.atomic_add(counts + 3, tl.sum(is_costly.to(tl.int64), axis=0), sem="relaxed")
    lag = tl.max(tl.where(is_hit, ahead + lag_offset, 0), axis=0)
    tl.atomic_max(counts + 4, lag, sem="relaxed")
