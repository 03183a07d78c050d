"""Rounds of a cache whose owner keeps its rows on the same GPU, with one transfer of counts each.

The rounds of `CachedStore` ask how many rows are missing, which copies are dirty, how many are due
and how many are stale, one after the other. On a GPU each question makes the host wait for all
work that it has queued. These rounds find everything in arrays as long as the batch, transfer all
counts at once, and then do the same work in the same order, with the same results. A step that
they cannot do, such as the first one and one after a copy was dropped, is left to the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from outsize.contracts import RowReply, RowStore, RowUpdate, Shard
from outsize.kernels.copies.compaction import (
    marked_places,
    places_of_slots,
    waits_for_counts,
)
from outsize.kernels.copies.due import mark_due
from outsize.kernels.copies.local_lines import OwnerLines, read_through
from outsize.kernels.copies.survey import LAG_OFFSET, Survey, survey
from outsize.stores.copies import RowCopies
from outsize.stores.copy_directory import Choice
from outsize.stores.local import LocalStore
from outsize.stores.pending_rows import Outbox, PendingRows


@dataclass(frozen=True)
class LastRead:
    """Where the rows of the last read are, so that their update need not look for them.

    Attributes:
        ids: The rows.
        slots: Their slots; negative for rows without a copy.
        copied: The places of rows with a copy.
        others: The places of rows without a copy.
        version: The version of the directory.
        own: The slots at `copied`, if they were listed; then updates are held where they are.
    """

    ids: Int64[Tensor, " n"]
    slots: Int64[Tensor, " n"]
    copied: Int64[Tensor, " k"]
    others: Int64[Tensor, " m"]
    version: int
    own: Int64[Tensor, " k"] | None = None

    def is_valid(self, held: Int64[Tensor, " num_slots"]) -> bool:
        """Whether the slots still hold what they held then."""
        return held._version == self.version


def last_read(
    ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"], held: Int64[Tensor, " num_slots"]
) -> LastRead | None:
    """Where the rows of a read are; `None` if to find that out makes the host wait for a GPU."""
    if waits_for_counts(slots.device):
        return None
    is_copied = slots >= 0
    copied, others = (flag.nonzero().flatten() for flag in (is_copied, ~is_copied))
    return LastRead(ids, slots, copied, others, held._version)


class RoundResult(NamedTuple):
    """A reply, with what the cache counts and remembers.

    Attributes:
        reply: The reply.
        last: Where its rows are, if no copy was dropped.
        hits: How many rows were served by a valid copy.
        evictions: How many copies were evicted.
        largest_lag: `RowCounts.largest_lag` of this read.
        local: How many rows this rank owns.
    """

    reply: RowReply
    last: LastRead | None
    hits: int
    evictions: int
    largest_lag: int | None
    local: int = 0


class _Counts(NamedTuple):
    """Counts of a round: those of the survey, then those of the choice."""

    had_copy: int
    hits: int
    again: int
    costly: int
    lag: int
    due: int
    admitted: int
    victims: int = 0
    dirty: int = 0


class _Plan(NamedTuple):
    """What a round does; without a choice, all rows get a copy, in slots that are free."""

    choice: Choice | None
    is_due: Bool[Tensor, " t"]
    is_dirty: Bool[Tensor, " k"] | None
    counts: _Counts


class LocalRounds:
    """The rounds of one cache over one store.

    Args:
        owner: The store, with all rows in one group.
        copies: The copies of its rows.
    """

    def __init__(self, owner: LocalStore, copies: RowCopies) -> None:
        self._owner = owner
        self._copies = copies

    def read(
        self,
        ids: Int64[Tensor, " n"],
        outbox: Outbox,
        read_staleness: float,
        write_staleness: float,
    ) -> RoundResult | None:
        """Push what is due, and read rows; `None`, without a change, if this cannot do it.

        Args:
            ids: As for `RowStore.exchange`; at least one.
            outbox: Updates of rows without a copy.
            read_staleness: As for `CachedStore`.
            write_staleness: As for `CachedStore`.
        """
        copies = self._copies
        touched = copies.touched_once(write_staleness)
        if touched is None or len(outbox) > 1 or not copies.chooses_ahead():
            return None
        found = copies.lookup(ids)
        copies.policy.used(ids, found)
        bound = int(read_staleness) if math.isfinite(read_staleness) else None
        seen = survey(
            copies.lines(), found, self._owner.clocks, ids, bound, write_staleness, copies.prices()
        )
        plan = self._plan(ids, found, touched, write_staleness, seen)
        if plan is None:
            copies.policy.candidates.forget()
            plan = self._plan(ids, found, touched, write_staleness, seen, among_all=True)
            assert plan is not None, "all slots are enough"
        counts = plan.counts
        due = None
        if counts.due:
            due = copies.pending_of(touched, marked_places(plan.is_due, counts.due))
        slots, evicted = self._admit(ids, found, plan)
        copies.looked_at_touched(write_staleness)
        self._push(due, evicted, outbox)
        num_copied = counts.had_copy + counts.admitted
        rows, clocks = self._read(ids, slots, seen, num_copied - counts.hits, counts.again)
        copied, others = places_of_slots(slots, num_copied)
        if counts.costly:
            copies.drop(slots[marked_places(seen.costly, counts.costly)])
            slots = copies.find(ids)
            copied, others = (mask.nonzero().flatten() for mask in (slots >= 0, slots < 0))
        last = LastRead(ids, slots, copied, others, copies.ids._version)
        reply = RowReply(torch.ones_like(seen.stale), (rows,), clocks)
        lag = counts.lag - LAG_OFFSET if counts.lag else None
        return RoundResult(reply, last, counts.hits, counts.victims, lag)

    def _plan(
        self,
        ids: Int64[Tensor, " n"],
        found: Int64[Tensor, " n"],
        touched: Int64[Tensor, " t"],
        write_staleness: float,
        seen: Survey,
        *,
        among_all: bool = False,
    ) -> _Plan | None:
        """What to admit, evict and push, with the counts; `None` if candidates were too few."""
        copies, lines = self._copies, self._copies.lines()
        num_due = seen.counts[-1:]
        if among_all:  # they were counted before
            num_due.zero_()
        # The only transfer of a round: whatever else depends on a number waits for it.
        if copies.has_room_for(ids.shape[0]):
            is_due = mark_due(lines, touched, write_staleness, None, num_due)
            numbers = seen.counts.tolist()
            numbers.append(ids.shape[0] - numbers[0])  # all without a copy get one
            return _Plan(None, is_due, None, _Counts(*numbers))
        choice = copies.choose_ahead(ids, found, among_all=among_all)
        is_due = mark_due(lines, touched, write_staleness, choice.holds_victim, num_due)
        is_dirty = copies.is_dirty(choice.victims) & choice.is_victim
        counts = [choice.admitted.sum(), choice.is_victim.sum(), is_dirty.sum()]
        if choice.num_left is not None and choice.is_short is not None:
            counts += [choice.num_left, choice.is_short.long()]
        numbers = torch.cat([seen.counts, torch.stack(counts)]).tolist()
        known = _Counts(*numbers[:9])
        if choice.num_left is not None:
            num_left, is_short = numbers[9:]
            if is_short:
                return None
            copies.policy.candidates.note_left(num_left)
        return _Plan(choice, is_due, is_dirty, known)

    def _admit(
        self,
        ids: Int64[Tensor, " n"],
        found: Int64[Tensor, " n"],
        plan: _Plan,
    ) -> tuple[Int64[Tensor, " n"], PendingRows | None]:
        """Evict and admit; returns the slots of all rows, and what was pending for evicted ones."""
        copies, choice, counts = self._copies, plan.choice, plan.counts
        evicted = None
        if choice is not None and counts.victims:
            assert plan.is_dirty is not None
            victims = choice.victims[: counts.victims]
            if counts.dirty:
                dirty = marked_places(plan.is_dirty[: counts.victims], counts.dirty)
                evicted = copies.pending_of(victims, dirty)
            copies.evict(victims)
        if not counts.admitted:
            return found, None
        if choice is None:
            new, own = marked_places(found < 0, counts.admitted), copies.next_free(counts.admitted)
            slots = found.index_copy(0, new, own)
        else:
            slots = torch.where(choice.admitted, choice.slots, found)
            new = marked_places(choice.admitted, counts.admitted)
            own = slots[new]
        copies.assign(ids[new], own)
        copies.took_free(counts.admitted - counts.victims)
        return slots, evicted

    def _push(self, due: PendingRows | None, evicted: PendingRows | None, outbox: Outbox) -> None:
        """Push pending updates of copies: of those that stay, and of evicted ones."""
        for rows in (due, evicted):
            if rows is not None:
                squares = None if rows.squares is None else (rows.squares,)
                update = RowUpdate(rows.ids, (rows.gradients,), rows.ticks, squares)
                self._owner.submit(update)
        if due is not None:
            self._copies.mark_pushed(due, due.gradients)
        for update in outbox.take_all():
            self._owner.submit(update)

    def _read(
        self,
        ids: Int64[Tensor, " n"],
        slots: Int64[Tensor, " n"],
        seen: Survey,
        num_refreshed: int,
        num_again: int,
    ) -> tuple[Float[Tensor, "n dim"], Int64[Tensor, " n"]]:
        copies, owner = self._copies, self._owner
        lines = OwnerLines(owner.rows(0), owner.clocks, owner.state(0))
        rows, clocks = read_through(
            copies.lines(), copies.state(), lines, ids, slots, seen.stale, num_refreshed
        )
        if num_again:
            again = marked_places(seen.again, num_again)
            own = slots[again]
            copies.apply_pending(own)
            rows.index_copy_(0, again, copies.rows.index_select(0, own))
        return rows, clocks


def local_rounds(inner: RowStore, copies: list[RowCopies]) -> LocalRounds | None:
    """The rounds of a cache, if its owner's rows are all on the same GPU; otherwise `None`."""
    if type(inner) is not LocalStore or inner.shard != Shard() or len(copies) > 1:
        return None
    device = inner.clocks.device
    if not waits_for_counts(device) or copies[0].ids.device != device:
        return None
    return LocalRounds(inner, copies[0])
