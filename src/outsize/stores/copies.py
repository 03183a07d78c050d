"""Cached copies of the rows of one group, with their clocks and pending updates.

A copy has a *start clock*: the owner's clock when the copy was read, plus own ticks pushed since.
It also has *pending* updates of this worker that the owner does not have yet: Σg, the squares that
the rule sums, and ticks. Pending updates are applied to the copy too, by the owner's rule: batch by
batch as they arrive, and as one sum when the copy is refreshed. So a worker always sees its own
updates. A copy with pending updates is *dirty*.

Error feedback: the rounding error of a push stays pending, without a tick. A rule that merges
batches adds it to its next sum, at any time. A rule that does not merge batches (Adam) adds it to
the row's next gradient and never applies it alone. The copy then applies that gradient as rounded
for the owner, so that copy and owner take the same step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from outsize.contracts.layout import RowGroup
from outsize.kernels.arrays import array
from outsize.kernels.copies import passes
from outsize.kernels.copies.compaction import waits_for_counts
from outsize.kernels.copies.due import pending_at
from outsize.kernels.copies.rounds import CacheInPlace, cache_in_place, list_new
from outsize.kernels.copies.survey import Prices
from outsize.kernels.copies.updates import add_and_update
from outsize.stores.copy_directory import NO_COPY, Others
from outsize.stores.copy_values import CopyValues
from outsize.stores.eviction.policy import EvictionPolicy
from outsize.stores.pending_rows import PendingRows

_CLOCK_BYTES = 4  # extra bytes per row of a request with clocks
_MIN_CHECKS = 16  # before a copy can be found unprofitable
_MOST_TOUCHED = 64  # updates without an exchange whose copies are listed one by one


class RowCopies(CopyValues):
    """At most `num_slots` copies of rows of one group. Ids are relative to the group's first row.

    Args:
        group: Width and type of the rows.
        num_slots: Maximum number of copies.
        policy: Chooses which rows are admitted and which copies are evicted.
        num_workers: Number of ranks whose gradients the owner averages.
        bytes_per_row: Bytes per row, or per gradient, in a message.
        seed: The store's seed, for the rounding of half-precision rows.
    """

    listed: Tensor
    _maybe_dirty: list[Tensor] | None  # slots that are `listed`; `None` if that was not kept up
    _touched: list[Tensor]  # slots that got an update since `due` was last called
    _last_bound: float

    def __init__(
        self,
        group: RowGroup,
        num_slots: int,
        policy: EvictionPolicy,
        num_workers: int,
        bytes_per_row: int,
        seed: int,
    ) -> None:
        super().__init__(group, num_slots, policy, num_workers, seed)
        self._bytes_per_row = bytes_per_row
        self.register_buffer("listed", torch.zeros(num_slots, dtype=torch.bool), persistent=False)
        self._list_dirty()

    def admit(
        self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]
    ) -> tuple[Int64[Tensor, " n"], PendingRows, int]:
        """Record that a step reads rows; admit those without a copy as the policy chooses.

        Arguments as for `choose`. Returns the new slots of all rows, the pending updates of evicted
        copies, and the number of evictions.
        """
        missing = (slots == NO_COPY).nonzero().flatten()
        if not missing.shape[0] and not waits_for_counts(slots.device):
            self.note_used(ids, slots)
            return (
                slots,
                PendingRows(missing, missing, self.pending[:0], missing, self._no_squares()),
                0,
            )
        chosen, places, victims = self.choose(ids, slots)
        dirty = victims[self.is_dirty(victims)] if victims.shape[0] else victims
        evicted = self.pending_updates(dirty)
        self.evict(victims)
        if places.shape[0]:
            admitted = missing[chosen]
            self.assign(ids[admitted], places)
            slots = slots.index_copy(0, admitted, places)
        return slots, evicted, victims.shape[0]

    def admit_others(self, rows: Others) -> tuple[Int64[Tensor, " n"], PendingRows | None, int]:
        """`admit`, for the remote rows that `find_others` found; returns the slots of all rows."""
        if not rows.found.shape[0] or int(array(rows.found).min()) >= 0:
            self.note_used(rows.ids, rows.found)
            return rows.slots, None, 0
        slots, evicted, num_evicted = self.admit(rows.ids, self._marked(rows.ids, rows.found))
        rows.slots.index_copy_(0, rows.places, slots)
        return rows.slots, evicted, num_evicted

    def add(
        self,
        slots: Int64[Tensor, " n"],
        gradients: Float[Tensor, "n dim"],
        ticks: Int64[Tensor, " n"],
        squares: Float[Tensor, "n _"] | None,
        as_sent: Callable[[Tensor], Tensor],
        places: Int64[Tensor, " k"] | None = None,
        touched: Int64[Tensor, " k"] | None = None,
    ) -> None:
        """Apply gradients to copies and add them to the pending updates.

        Args:
            slots: Slots of the copies, each once; negative for rows without a copy, left out.
            gradients: Σg over one batch or several.
            ticks: Number of batches in each sum.
            squares: The rule's squares, summed over the batches; `None` for one batch.
            as_sent: Rounds gradients as the wire does.
            places: Where slots are not negative, if the caller knows it.
            touched: The slots there, if the caller knows them, too.
        """
        assert self._rule is not None
        merges = self._rule.merges_batches
        if squares is None and merges:
            is_added = add_and_update(
                self.lines(), self.state(), self._rule, slots, gradients, ticks,
                self._num_workers, self._bytes_per_row,
            )  # fmt: skip
            if is_added:
                if touched is None:
                    touched = slots[slots >= 0] if places is None else slots[places]
                self._note_touched(touched)
                return
        own = self._rule.square(gradients) if squares is None else squares
        added = passes.add_pending(
            self.lines(), slots, gradients, ticks, own,
            self._num_workers if merges else None, self._bytes_per_row, places,
        )  # fmt: skip
        mean = added.gradients if merges else as_sent(added.gradients) / self._num_workers
        if squares is not None and added.index is not None:
            squares = squares.index_select(0, added.index)
        self._note_touched(added.slots)
        summed = self._summed(mean, added.ticks, squares)
        if not self._update(added.slots, mean, added.ticks, summed):
            self.ticks.index_add_(0, added.slots, added.ticks.to(torch.int32))
            self._step(added.slots, mean, added.ticks, summed)

    def due(self, write_staleness: float) -> Int64[Tensor, " _"]:
        """Slots with more than `write_staleness` pending ticks, each once."""
        if write_staleness < self._last_bound:
            touched = self.dirty()  # ticks that were few enough may be too many
        else:
            # Others had few enough ticks when they were last looked at.
            touched = torch.cat(self._touched) if self._touched else self.ids[:0]
            if len(self._touched) > 1:
                touched = touched.unique()
        self._touched, self._last_bound = [], write_staleness
        return touched[self.ticks.index_select(0, touched) > write_staleness]

    def in_place(self) -> CacheInPlace | None:
        """The memory of the copies, if there are kernels for rounds with other owners."""
        return cache_in_place(self.lines(), self.state(), self.ids)

    def take_due(
        self, cache: CacheInPlace, write_staleness: float, number_bytes: int
    ) -> PendingRows:
        """`pending_updates` of those that are `due`, then `mark_pushed`, by compiled kernels.

        `cache` is from `in_place`, and `number_bytes` tells the wire that rounds them.
        """
        slots, touched = None, self.touched_once(write_staleness)
        if touched is not None:
            slots = cache.due_in_order(touched, write_staleness)
        if slots is None:
            slots = self.due(write_staleness)
            slots = slots[self.ids[slots].argsort()]
        self.looked_at_touched(write_staleness)
        merges = self._rule is None or self._rule.merges_batches
        taken = cache.take_pushed(slots, number_bytes, self._bytes_per_row, keeps_error=merges)
        return PendingRows(*taken)

    def dirty(self) -> Int64[Tensor, " _"]:
        """Slots with pending updates, each once."""
        if self._maybe_dirty is None:
            self._list_dirty(also_touched=False)
            assert self._maybe_dirty is not None
        listed = torch.cat(self._maybe_dirty)
        is_dirty = self.is_dirty(listed)
        self.listed.index_fill_(0, listed[~is_dirty], False)
        self._maybe_dirty = [listed[is_dirty]]
        return self._maybe_dirty[0]

    def pending_updates(self, slots: Int64[Tensor, " n"]) -> PendingRows:
        """The pending updates of copies, by ascending id; they stay pending until `mark_pushed`."""
        ids, order = self.ids[slots].sort()
        slots = slots[order]
        return PendingRows(slots, ids, *self._pending(slots))

    def mark_pushed(self, pushed: PendingRows, sent: Float[Tensor, "n dim"]) -> None:
        """Clear updates that were pushed; their rounding error stays pending.

        The error makes a copy dirty only if the rule merges batches (see the module docstring).
        Own updates count as seen: the start clock advances by their ticks. `sent` are the gradients
        as rounded by the wire.
        """
        merges = self._rule is None or self._rule.merges_batches
        passes.settle(
            self.lines(), pushed.slots, pushed.gradients, pushed.ticks, sent,
            self._bytes_per_row, keeps_error=merges,
        )  # fmt: skip

    def touched_once(self, write_staleness: float) -> Int64[Tensor, " _"] | None:
        """Slots that may have more pending ticks, each once; `None` if that takes a search."""
        if write_staleness < self._last_bound or len(self._touched) > 1:
            return None
        return self._touched[0] if self._touched else self.ids[:0]

    def looked_at_touched(self, write_staleness: float) -> None:
        """Record that the slots of `touched_once` with more ticks are pushed."""
        self._touched, self._last_bound = [], write_staleness

    def pending_of(self, slots: Int64[Tensor, " n"], places: Int64[Tensor, " k"]) -> PendingRows:
        """`pending_updates` of the copies at some places of a list, in the order of the list."""
        return PendingRows(*pending_at(self.lines(), self.ids, slots, places))

    def prices(self) -> Prices:
        """What checks of clocks cost and save."""
        return Prices(self._bytes_per_row, _CLOCK_BYTES, _MIN_CHECKS)

    def drop_unprofitable(
        self, slots: Int64[Tensor, " n"], was_held: Bool[Tensor, " n"], stale: Bool[Tensor, " n"]
    ) -> int:
        """Count the bytes that checks of clocks cost and saved; drop copies that cost more.

        `was_held` says which slots had a valid clock to check, and `stale` which of them the owner
        found stale. Returns the number of dropped copies.
        """
        costly = passes.count_checks(
            self.lines(), slots, was_held, stale, self._bytes_per_row, _CLOCK_BYTES, _MIN_CHECKS
        )
        self.drop(costly)
        return costly.shape[0]

    def invalidate(self) -> None:
        """Invalidate all copies: each is read again before its next use.

        Rows whose copy was dropped as unprofitable may be admitted again. Rounding errors of copies
        that are not dirty are dropped. The memory of the copies is then a function of the number of
        slots, whatever has happened in them.
        """
        self.pending.masked_fill_(((self.ticks == 0) & ~self.leftover).unsqueeze(1), 0.0)
        self.clocks.fill_(-1)
        self.checks.zero_()
        self.balance.zero_()
        self._unprofitable.clear()
        self._index.compact(self.ids)
        self.dirty()  # shortens its list

    def load_directory(self, saved: Mapping[str, Tensor]) -> None:
        """Load what `directory` returned; values are read again from their owners."""
        super().load_directory(saved)
        self.invalidate()

    def index_memory(self) -> list[Tensor]:  # noqa: D102
        return [*super().index_memory(), *(self._maybe_dirty or ())]

    def _empty(self, slots: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """Remove copies; the caller has taken their pending updates."""
        ids = super()._empty(slots)
        passes.clear(self.lines(), slots)
        return ids

    def _no_squares(self) -> Float[Tensor, "0 _"] | None:
        summed = self._buffers.get("squares")
        return None if summed is None else summed[:0]

    def _note_touched(self, slots: Int64[Tensor, " n"]) -> None:
        """List copies that got an update: they may be due, and they may be dirty."""
        self._touched.append(slots)
        if len(self._touched) > _MOST_TOUCHED:
            self._touched = [torch.cat(self._touched).unique()]
        if waits_for_counts(slots.device) or self._maybe_dirty is None:
            self._maybe_dirty = None  # to find new ones would make the host wait
            return
        new = list_new(self.listed, slots)
        if new is None:
            new = slots[~self.listed.index_select(0, slots)]
            self.listed.index_fill_(0, new, True)
        if new.shape[0]:
            self._maybe_dirty.append(new)

    def _list_dirty(self, *, also_touched: bool = True) -> None:
        """List dirty copies by a look at all; forget which were touched, too, or not."""
        dirty = ((self.ticks > 0) | self.leftover).nonzero().flatten()
        self.listed.zero_().index_fill_(0, dirty, True)
        self._maybe_dirty = [dirty]
        if not also_touched:
            return
        self._touched = []
        self._last_bound = math.inf  # no copy has been found to have few enough ticks

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RowCopies:
        device = self.ids.device
        super()._apply(fn, recurse)
        if self.ids.device != device:
            self._list_dirty()
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._list_dirty()
