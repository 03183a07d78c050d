"""Which copies are due for a push, and what is pending for them, without waiting for a GPU."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from outsize.kernels.copies.passes import CopyLines


class Pending(NamedTuple):
    """What is pending for some copies.

    Attributes:
        slots: Their slots.
        ids: Their rows.
        gradients: Pending gradients.
        ticks: Batches in each.
        squares: Pending squares, if the rule sums any.
    """

    slots: Int64[Tensor, " n"]
    ids: Int64[Tensor, " n"]
    gradients: Float32[Tensor, "n dim"]
    ticks: Int64[Tensor, " n"]
    squares: Float32[Tensor, "n _"] | None


def mark_due(
    copies: CopyLines,
    touched: Int64[Tensor, " t"],
    write_staleness: float,
    is_evicted: Bool[Tensor, " slots"] | None,
    count: Int64[Tensor, " 1"],
) -> Bool[Tensor, " t"]:
    """Whether slots have more than `write_staleness` pending ticks; adds their number to `count`.

    Args:
        copies: The cache.
        touched: Slots, each once.
        write_staleness: As for `CachedStore`.
        is_evicted: Slots that are left out, if any.
        count: Where to add.
    """
    if copies.uses_triton() and touched.shape[0]:
        from outsize.kernels.copies.due_triton import mark_due_by_triton

        return mark_due_by_triton(copies.ticks, touched, write_staleness, is_evicted, count)
    is_due = copies.ticks.index_select(0, touched) > write_staleness
    if is_evicted is not None:
        is_due = is_due & ~is_evicted.index_select(0, touched)
    count += is_due.sum()
    return is_due


def pending_at(
    copies: CopyLines,
    held: Int64[Tensor, " slots"],
    listed: Int64[Tensor, " t"],
    places: Int64[Tensor, " n"],
) -> Pending:
    """What is pending for the copies at some places of a list of slots.

    Args:
        copies: The cache.
        held: The row in each slot.
        listed: Slots.
        places: Places in that list.
    """
    if copies.uses_triton() and places.shape[0]:
        from outsize.kernels.copies.due_triton import pending_by_triton

        return Pending(*pending_by_triton(copies, held, listed, places))
    slots = listed.index_select(0, places)
    squares = None if copies.squares is None else copies.squares.index_select(0, slots)
    return Pending(
        slots,
        held.index_select(0, slots),
        copies.pending.index_select(0, slots),
        copies.ticks.index_select(0, slots).long(),
        squares,
    )
