"""What a step will do to the copies it reads, found before it does anything: masks and counts.

A GPU that tells the host how many rows are missing, then how many are stale, then how many copies
are dirty, waits for the host each time. Here all of it is found first, in arrays as long as the
batch, so that all counts travel together.

It requires that the owner's rows are at hand, and that nobody else pushes in the round. Then an own
push advances the clocks of a row and of its valid copy alike, so that who is ahead of whom is known
before the push.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int32, Int64
from torch import Tensor

from outsize.kernels.available import uses_triton
from outsize.kernels.copies.passes import CopyLines

LAG_OFFSET = 1 << 61  # makes a lag a positive number: 0 is none


class Prices(NamedTuple):
    """What checks of clocks cost and save, in bytes; see `passes.count_checks`."""

    row_bytes: int
    check_bytes: int
    least_checks: int


class Survey(NamedTuple):
    """What was found for each row of a request.

    Attributes:
        stale: Whether the owner's row must be read.
        again: Whether the copy is replaced, and then gets its pending update again.
        costly: Whether the copy is to be dropped, because its checks cost more than they saved.
        counts: How many rows have a copy before this step; how many of these are valid and not
            stale; how many are in `again`; how many in `costly`; `LAG_OFFSET` + the maximum of
            (owner's clock − copy's clock) over valid copies that are not stale, 0 for none; and a
            place for the number of copies that are due.
    """

    stale: Bool[Tensor, " n"]
    again: Bool[Tensor, " n"]
    costly: Bool[Tensor, " n"]
    counts: Int64[Tensor, " 6"]


def survey(
    copies: CopyLines,
    found: Int64[Tensor, " n"],
    owner_clocks: Int32[Tensor, " rows"],
    ids: Int64[Tensor, " n"],
    read_staleness: int | None,
    write_staleness: float,
    prices: Prices,
) -> Survey:
    """Find what a step will do to the copies it reads; counts the checks of their clocks.

    Args:
        copies: The cache.
        found: The slot of each row; negative if it has no copy before this step.
        owner_clocks: Clocks of all rows.
        ids: The rows that are requested.
        read_staleness: Updates by which a valid copy may be behind; `None` for any number.
        write_staleness: Copies with more ticks are pushed in this step.
        prices: What checks cost and save.
    """
    if uses_triton(ids, copies.rows):
        from outsize.kernels.copies.survey_triton import survey_by_triton

        return Survey(
            *survey_by_triton(
                copies, found, owner_clocks, ids, read_staleness, write_staleness,
                prices, LAG_OFFSET,
            )
        )  # fmt: skip
    has_copy, own = found >= 0, found.clamp_min(0)
    clocks = copies.clocks.index_select(0, own)
    is_held = has_copy & (clocks >= 0)
    ahead = owner_clocks.index_select(0, ids).long() - clocks
    stale = ~is_held if read_staleness is None else ~is_held | (ahead > read_staleness)
    ticks, leftover = (t.index_select(0, own) for t in (copies.ticks, copies.leftover))
    is_due = ticks > write_staleness
    dirty_after = ~is_due & ((ticks > 0) | leftover)
    again = has_copy & stale & dirty_after
    costly = torch.zeros_like(stale)
    if read_staleness is not None:
        saved = ~stale * prices.row_bytes - prices.check_bytes
        # Rows without a valid copy add nothing to that in slot 0, or to their own.
        copies.checks.index_add_(0, own, is_held.to(torch.int32))
        copies.balance.index_add_(0, own, torch.where(is_held, saved, 0))
        checks, balance = (t.index_select(0, own) for t in (copies.checks, copies.balance))
        balance = balance - is_due * prices.row_bytes
        is_checked = is_held & (checks >= prices.least_checks)
        costly = is_checked & (balance < 0) & ~dirty_after
    hits = is_held & ~stale
    lag = torch.where(hits, ahead + LAG_OFFSET, 0).amax()
    counts = [has_copy.sum(), hits.sum(), again.sum(), costly.sum(), lag, torch.zeros_like(lag)]
    return Survey(stale, again, costly, torch.stack(counts))
