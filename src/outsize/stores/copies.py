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
from outsize.contracts.updates import stepped_rows
from outsize.kernels.copies import passes
from outsize.kernels.copies.passes import CopyLines
from outsize.kernels.rows.rounding import rounding_keys
from outsize.kernels.rows.updates import UpdateRule
from outsize.stores.copy_directory import NO_COPY, CopyDirectory
from outsize.stores.eviction.policy import EvictionPolicy
from outsize.stores.merging import squares_for
from outsize.stores.pending_rows import PendingRows

_CLOCK_BYTES = 4  # extra bytes per row of a request with clocks
_MIN_CHECKS = 16  # before a copy can be found unprofitable
_MOST_TOUCHED = 64  # updates without an exchange whose copies are listed one by one


class RowCopies(CopyDirectory):
    """At most `num_slots` copies of rows of one group. Ids are relative to the group's first row.

    Args:
        group: Width and type of the rows.
        num_slots: Maximum number of copies.
        policy: Chooses which rows are admitted and which copies are evicted.
        num_workers: Number of ranks whose gradients the owner averages.
        bytes_per_row: Bytes per row, or per gradient, in a message.
        seed: The store's seed, for the rounding of half-precision rows.
    """

    clocks: Tensor
    ticks: Tensor
    leftover: Tensor
    rows: Tensor
    pending: Tensor
    checks: Tensor
    balance: Tensor
    listed: Tensor
    _maybe_dirty: list[Tensor]  # slots that are `listed`
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
        super().__init__(group.num_rows, num_slots, policy)
        self._first_id, self._seed = group.start, seed
        self._rule: UpdateRule | None = None
        self._num_workers = num_workers
        self._bytes_per_row = bytes_per_row
        self.register_buffer("clocks", torch.full((num_slots,), -1, dtype=torch.int64))
        self.register_buffer("ticks", torch.zeros(num_slots, dtype=torch.int32))
        self.register_buffer("leftover", torch.zeros(num_slots, dtype=torch.bool))
        self.register_buffer("rows", torch.zeros(num_slots, group.dim, dtype=group.dtype))
        self.register_buffer("pending", torch.zeros(num_slots, group.dim))
        self.register_buffer("checks", torch.zeros(num_slots, dtype=torch.int32))
        self.register_buffer("balance", torch.zeros(num_slots, dtype=torch.int64))
        self.register_buffer("listed", torch.zeros(num_slots, dtype=torch.bool), persistent=False)
        self._list_dirty()

    def bind(self, rule: UpdateRule) -> None:
        """Apply updates to copies by this rule; the first call allocates its state."""
        if self._rule is None:
            num_slots, dim = self.rows.shape
            widths = {f"state_{n}": w for n, w in rule.state_widths(dim).items()}
            square = rule.square(torch.empty(0, dim))
            if square is not None:
                widths["squares"] = square.shape[1]
            for name, width in widths.items():
                zeros = torch.zeros(num_slots, width, device=self.rows.device)
                self.register_buffer(name, zeros)
        self._rule = rule

    def held_clocks(self, slots: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """Start clocks of copies; -1 if there is no copy or it is invalid."""
        return passes.held_clocks(self._lines(), slots)

    def admit(
        self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]
    ) -> tuple[Int64[Tensor, " n"], PendingRows, int]:
        """Record that a step reads rows; admit those without a copy as the policy chooses.

        Arguments as for `choose`. Returns the new slots of all rows, the pending updates of evicted
        copies, and the number of evictions.
        """
        missing = (slots == NO_COPY).nonzero().flatten()
        chosen, places, victims = self.choose(ids, slots)
        dirty = victims[self.is_dirty(victims)] if victims.shape[0] else victims
        evicted = self.pending_updates(dirty)
        self.evict(victims)
        if places.shape[0]:
            admitted = missing[chosen]
            self.assign(ids[admitted], places)
            slots = slots.index_copy(0, admitted, places)
        return slots, evicted, victims.shape[0]

    def add(
        self,
        slots: Int64[Tensor, " n"],
        gradients: Float[Tensor, "n dim"],
        ticks: Int64[Tensor, " n"],
        squares: Float[Tensor, "n _"] | None,
        as_sent: Callable[[Tensor], Tensor],
    ) -> None:
        """Apply gradients to copies and add them to the pending updates.

        Args:
            slots: Slots of the copies, each once; negative for rows without a copy, left out.
            gradients: Σg over one batch or several.
            ticks: Number of batches in each sum.
            squares: The rule's squares, summed over the batches; `None` for one batch.
            as_sent: Rounds gradients as the wire does.
        """
        assert self._rule is not None
        own = self._rule.square(gradients) if squares is None else squares
        merges = self._rule.merges_batches
        added = passes.add_pending(
            self._lines(), slots, gradients, ticks, own,
            self._num_workers if merges else None, self._bytes_per_row,
        )  # fmt: skip
        mean = added.gradients if merges else as_sent(added.gradients) / self._num_workers
        if squares is not None and added.index is not None:
            squares = squares.index_select(0, added.index)
        self._note_touched(added.slots)
        state = self._state()
        summed = self._summed(mean, added.ticks, squares)
        if not self._rule.update(
            self.rows, state, self.ticks, added.slots, mean, added.ticks, summed
        ):
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

    def dirty(self) -> Int64[Tensor, " _"]:
        """Slots with pending updates, each once."""
        listed = torch.cat(self._maybe_dirty)
        is_dirty = self.is_dirty(listed)
        self.listed.index_fill_(0, listed[~is_dirty], False)
        self._maybe_dirty = [listed[is_dirty]]
        return self._maybe_dirty[0]

    def is_dirty(self, slots: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Whether each of these copies has a pending update."""
        return passes.is_dirty(self._lines(), slots)

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
            self._lines(), pushed.slots, pushed.gradients, pushed.ticks, sent,
            self._bytes_per_row, keeps_error=merges,
        )  # fmt: skip

    def refresh_and_read(
        self,
        slots: Int64[Tensor, " n"],
        stale: Bool[Tensor, " n"],
        rows: Float[Tensor, "k dim"],
        clocks: Int64[Tensor, " k"],
        state: Mapping[str, Float[Tensor, "k _"]],
        *,
        with_state: bool,
    ) -> tuple[Float[Tensor, "n dim"], dict[str, Float[Tensor, "n _"]], Int64[Tensor, " n"]]:
        """Refresh stale copies, and return rows, state and clocks for the step.

        Args:
            slots: Slots of the rows to read; negative for rows without a copy, which are all sent.
            stale: Whether the owner sent the row.
            rows: The rows that were sent.
            clocks: Their clocks.
            state: Their optimizer state.
            with_state: Whether to return the state of all rows, or none.
        """
        if not self.num_copies:
            return rows, dict(state) if with_state else {}, clocks
        copies, own_state = self._lines(), self._state()
        dirty = passes.refresh(copies, own_state, slots, stale, rows, clocks, state)
        if dirty.numel():
            gradients, ticks, squares = self._pending(dirty)
            mean = gradients / self._num_workers
            self._step(dirty, mean, ticks, self._summed(mean, ticks, squares))
        found, seen = passes.read(copies, slots, stale, rows, clocks)
        if not with_state:
            return found, {}, seen
        own, others = slots.clamp_min(0), (slots < 0).nonzero().flatten()
        line = passes.sent_line(stale)[others]
        joined = {
            name: passes.join_lines(own_state[name], own, others, value, line)
            for name, value in state.items()
        }
        return found, joined, seen

    def drop_unprofitable(
        self, slots: Int64[Tensor, " n"], was_held: Bool[Tensor, " n"], stale: Bool[Tensor, " n"]
    ) -> None:
        """Count the bytes that checks of clocks cost and saved; drop copies that cost more.

        `was_held` says which slots had a valid clock to check, and `stale` which of them the owner
        found stale.
        """
        self.drop(
            passes.count_checks(
                self._lines(), slots, was_held, stale,
                self._bytes_per_row, _CLOCK_BYTES, _MIN_CHECKS,
            )
        )  # fmt: skip

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
        return [*super().index_memory(), *self._maybe_dirty]

    def _empty(self, slots: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """Remove copies; the caller has taken their pending updates."""
        ids = super()._empty(slots)
        self.clocks.index_fill_(0, slots, -1)
        for buffer in (self.ticks, self.leftover, self.pending, self.checks, self.balance):
            buffer.index_fill_(0, slots, 0)
        if "squares" in self._buffers:
            self.get_buffer("squares").index_fill_(0, slots, 0.0)
        return ids

    def _lines(self) -> CopyLines:
        return CopyLines(
            self.rows, self.clocks, self.ticks, self.pending, self._buffers.get("squares"),
            self.leftover, self.checks, self.balance,
        )  # fmt: skip

    def _state(self) -> dict[str, Tensor]:
        if self._rule is None:
            return {}
        names = self._rule.state_widths(self.rows.shape[1])
        return {name: self.get_buffer(f"state_{name}") for name in names}

    def _note_touched(self, slots: Int64[Tensor, " n"]) -> None:
        """List copies that got an update: they may be due, and they may be dirty."""
        self._touched.append(slots)
        if len(self._touched) > _MOST_TOUCHED:
            self._touched = [torch.cat(self._touched).unique()]
        new = slots[~self.listed.index_select(0, slots)]
        if new.numel():
            self.listed.index_fill_(0, new, True)
            self._maybe_dirty.append(new)

    def _list_dirty(self) -> None:
        """List dirty copies by a look at all."""
        dirty = ((self.ticks > 0) | self.leftover).nonzero().flatten()
        self.listed.zero_().index_fill_(0, dirty, True)
        self._maybe_dirty, self._touched = [dirty], []
        self._last_bound = math.inf  # no copy has been found to have few enough ticks

    def _pending(self, slots: Int64[Tensor, " n"]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Pending gradients, ticks and squares of copies."""
        summed = self._buffers.get("squares")
        squares = None if summed is None else summed.index_select(0, slots)
        ticks = self.ticks.index_select(0, slots).long()
        return self.pending.index_select(0, slots), ticks, squares

    def _summed(self, mean: Tensor, ticks: Tensor, squares: Tensor | None) -> Tensor | None:
        """The squares of an update as an owner computes them."""
        if squares is None:
            return None
        assert self._rule is not None
        found = squares_for(self._rule, (mean,), (squares,), ticks > 1, self._num_workers)
        return None if found is None else found[0]

    def _step(self, slots: Tensor, mean: Tensor, ticks: Tensor, squares: Tensor | None) -> None:
        """Apply updates to copies as an owner applies a push; ticks are counted already."""
        assert self._rule is not None
        state = {name: part.index_select(0, slots) for name, part in self._state().items()}

        def keys() -> Int64[Tensor, " n"]:
            ids = self.ids.index_select(0, slots) + self._first_id
            clocks = self.clocks.index_select(0, slots) + self.ticks.index_select(0, slots)
            return rounding_keys(self._seed, ids, clocks, ticks)

        copies = self.rows.index_select(0, slots)
        rows = stepped_rows(self._rule, copies, state, mean, squares, keys)
        self.rows.index_copy_(0, slots, rows)
        for name, value in state.items():
            self.get_buffer(f"state_{name}").index_copy_(0, slots, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RowCopies:
        device = self.ids.device
        super()._apply(fn, recurse)
        if self.ids.device != device:
            self._list_dirty()
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._list_dirty()
