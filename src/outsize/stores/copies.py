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

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from outsize.contracts.layout import RowGroup
from outsize.contracts.updates import stepped_rows
from outsize.kernels.rows.rounding import rounding_keys
from outsize.kernels.rows.updates import UpdateRule
from outsize.stores.copy_directory import NO_COPY, UNPROFITABLE, CopyDirectory
from outsize.stores.eviction.policy import EvictionPolicy
from outsize.stores.merging import squares_for
from outsize.stores.pending_rows import PendingRows

_CLOCK_BYTES = 4  # extra bytes per row of a request with clocks
_MIN_CHECKS = 16  # before a copy can be found unprofitable


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
        self.register_buffer("ticks", torch.zeros(num_slots, dtype=torch.int64))
        self.register_buffer("leftover", torch.zeros(num_slots, dtype=torch.bool))
        self.register_buffer("rows", torch.zeros(num_slots, group.dim, dtype=group.dtype))
        self.register_buffer("pending", torch.zeros(num_slots, group.dim))
        self.register_buffer("checks", torch.zeros(num_slots, dtype=torch.int32))
        self.register_buffer("balance", torch.zeros(num_slots, dtype=torch.int64))

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
        return torch.where(slots >= 0, self.clocks[slots.clamp_min(0)], -1)

    def admit(
        self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]
    ) -> tuple[Int64[Tensor, " n"], PendingRows, int]:
        """Record that a step reads rows; admit those without a copy as the policy chooses.

        Arguments as for `choose`. Returns the new slots of all rows, the pending updates of evicted
        copies, and the number of evictions.
        """
        missing = slots == NO_COPY
        chosen, places, victims = self.choose(ids, slots)
        evicted = self.pending_updates(victims[self.is_dirty(victims)])
        self.remove(victims, NO_COPY)
        self.assign(ids[missing][chosen], places)
        slots = slots.masked_scatter(missing, slots[missing].masked_scatter(chosen, places))
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
            slots: Slots of the copies, each once.
            gradients: Σg over one batch or several.
            ticks: Number of batches in each sum.
            squares: The rule's squares, summed over the batches; `None` for one batch.
            as_sent: Rounds gradients as the wire does.
        """
        assert self._rule is not None
        self.pending.index_add_(0, slots, gradients)
        self.ticks.index_add_(0, slots, ticks)
        applied = gradients
        if not self._rule.merges_batches:
            applied = as_sent(self.pending.index_select(0, slots))
        self._step(slots, applied, ticks, squares)
        self.balance.index_add_(0, slots, torch.full_like(slots, self._bytes_per_row))
        own = self._rule.square(gradients) if squares is None else squares
        if own is not None:
            self.get_buffer("squares").index_add_(0, slots, own)

    def due(self, write_staleness: float) -> Int64[Tensor, " _"]:
        """Slots with more than `write_staleness` pending ticks."""
        return (self.ticks > write_staleness).nonzero().flatten()

    def dirty(self) -> Int64[Tensor, " _"]:
        """Slots with pending updates."""
        return ((self.ticks > 0) | self.leftover).nonzero().flatten()

    def is_dirty(self, slots: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Whether each of these copies has a pending update."""
        return (self.ticks.index_select(0, slots) > 0) | self.leftover.index_select(0, slots)

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
        slots = pushed.slots
        held = self.clocks.index_select(0, slots) >= 0
        self.clocks.index_add_(0, slots, torch.where(held, pushed.ticks, 0))
        error = pushed.gradients - sent
        self.pending.index_copy_(0, slots, error)
        if self._rule is None or self._rule.merges_batches:
            self.leftover.index_copy_(0, slots, error.abs().amax(dim=1) > 0)
        self.ticks.index_fill_(0, slots, 0)
        self.balance.index_add_(0, slots, torch.full_like(slots, -self._bytes_per_row))
        if pushed.squares is not None:
            self.get_buffer("squares").index_fill_(0, slots, 0.0)

    def refresh_and_read(
        self,
        slots: Int64[Tensor, " n"],
        stale: Bool[Tensor, " n"],
        rows: Float[Tensor, "k dim"],
        clocks: Int64[Tensor, " n"],
        state: Mapping[str, Float[Tensor, "k _"]],
    ) -> tuple[Float[Tensor, "n dim"], dict[str, Float[Tensor, "n _"]], Int64[Tensor, " n"]]:
        """Refresh stale copies, and return rows, state and clocks for the step.

        Args:
            slots: Slots of the rows to read; negative for rows without a copy, which are all sent.
            stale: Whether the owner sent the row.
            rows: The rows that were sent.
            clocks: Clocks of the sent rows; ignored for the others.
            state: Optimizer state of the sent rows.
        """
        line = stale.cumsum(0) - 1
        here = slots >= 0
        refreshed = (here & stale).nonzero().flatten()
        self._refresh(slots[refreshed], rows, line[refreshed], clocks[refreshed], state)
        others = (~here).nonzero().flatten()
        own, sent = slots.clamp_min(0), line[others]
        seen = self.clocks.index_select(0, own) + self.ticks.index_select(0, own)

        def joined(copied: Tensor, arrived: Tensor) -> Tensor:
            lines = copied.index_select(0, own)
            return lines.index_copy_(0, others, arrived.index_select(0, sent))

        return (
            joined(self.rows, rows),
            {name: joined(self.get_buffer(f"state_{name}"), v) for name, v in state.items()},
            torch.where(here, seen, clocks),
        )

    def drop_unprofitable(self, slots: Int64[Tensor, " n"], was_valid: Bool[Tensor, " n"]) -> None:
        """Count the bytes that checks of clocks cost and saved; drop copies that cost more.

        `was_valid` says whether the copy of each slot that was checked was still valid.
        """
        self.checks.index_add_(0, slots, torch.ones_like(slots, dtype=torch.int32))
        self.balance.index_add_(0, slots, was_valid * self._bytes_per_row - _CLOCK_BYTES)
        checks, balance = (t.index_select(0, slots) for t in (self.checks, self.balance))
        costly = slots[(checks >= _MIN_CHECKS) & (balance < 0)]
        if costly.numel():
            self.remove(costly[~self.is_dirty(costly)], UNPROFITABLE)

    def invalidate(self) -> None:
        """Invalidate all copies: each is read again before its next use.

        Rows whose copy was dropped as unprofitable may be admitted again. Rounding errors of copies
        that are not dirty are dropped.
        """
        self.pending.masked_fill_(((self.ticks == 0) & ~self.leftover).unsqueeze(1), 0.0)
        self.clocks.fill_(-1)
        self.checks.zero_()
        self.balance.zero_()
        self.slot_of[self.slot_of == UNPROFITABLE] = NO_COPY

    def load_directory(self, saved: Mapping[str, Tensor]) -> None:
        """Load what `directory` returned; values are read again from their owners."""
        super().load_directory(saved)
        self.invalidate()

    def remove(self, slots: Int64[Tensor, " n"], mark: int) -> None:
        """Remove copies; the caller has taken their pending updates."""
        super().remove(slots, mark)
        self.clocks.index_fill_(0, slots, -1)
        for buffer in (self.ticks, self.leftover, self.pending, self.checks, self.balance):
            buffer.index_fill_(0, slots, 0)
        if "squares" in self._buffers:
            self.get_buffer("squares").index_fill_(0, slots, 0.0)

    def _pending(self, slots: Int64[Tensor, " n"]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Pending gradients, ticks and squares of copies."""
        summed = self.get_buffer("squares") if "squares" in self._buffers else None
        squares = None if summed is None else summed.index_select(0, slots)
        return self.pending.index_select(0, slots), self.ticks.index_select(0, slots), squares

    def _refresh(
        self, slots: Tensor, rows: Tensor, line: Tensor, clocks: Tensor, state: Mapping[str, Tensor]
    ) -> None:
        """Replace copies by rows that owners sent, and apply pending updates to them."""
        self.rows.index_copy_(0, slots, rows.index_select(0, line))
        self.clocks.index_copy_(0, slots, clocks)
        for name, value in state.items():
            self.get_buffer(f"state_{name}").index_copy_(0, slots, value.index_select(0, line))
        dirty = slots[self.is_dirty(slots)]
        if dirty.numel():
            self._step(dirty, *self._pending(dirty))

    def _step(
        self, slots: Tensor, gradients: Tensor, ticks: Tensor, squares: Tensor | None
    ) -> None:
        """Apply updates to copies as an owner applies a push; ticks are counted already."""
        assert self._rule is not None
        names = self._rule.state_widths(self.rows.shape[1])
        state = {n: self.get_buffer(f"state_{n}").index_select(0, slots) for n in names}
        mean = gradients / self._num_workers
        summed = None
        if squares is not None:
            found = squares_for(self._rule, (mean,), (squares,), ticks > 1, self._num_workers)
            summed = None if found is None else found[0]

        def keys() -> Int64[Tensor, " n"]:
            ids = self.ids.index_select(0, slots) + self._first_id
            clocks = self.clocks.index_select(0, slots) + self.ticks.index_select(0, slots)
            return rounding_keys(self._seed, ids, clocks, ticks)

        rows = stepped_rows(self._rule, self.rows.index_select(0, slots), state, mean, summed, keys)
        self.rows.index_copy_(0, slots, rows)
        for name, value in state.items():
            self.get_buffer(f"state_{name}").index_copy_(0, slots, value)
