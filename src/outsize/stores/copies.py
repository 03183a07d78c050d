"""Copies of rows of one group: where they lie, how old they are, what is still to be pushed.

A copy has a *start clock* (the owner's clock when it was read, plus own updates pushed since) and
*pending* updates of this worker that the owner does not have yet: Σg, what the rule sums beside it,
and ticks. Pending updates are applied to the copy as well, by the owner's own rule: batch by batch
as they come, and as one sum when the copy is read anew. So a worker always sees its own writes.

What a rounding wire leaves out of a push stays pending, without a tick. A rule that merges batches
takes it as a part of a sum, at any time. Under one that does not it waits for the row's next
gradient, is rounded with it, and is never an update of its own; the copy shows that gradient as the
owner will get it, so that copy and owner take the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from outsize.contracts.layout import RowGroup
from outsize.kernels.rows.rounding import is_half_precision, round_at_random, rounding_keys
from outsize.kernels.rows.updates import UpdateRule
from outsize.stores.eviction.policy import EvictionPolicy
from outsize.stores.merging import squares_for

_NOT_HERE = -1
_NOT_WORTH_IT = -2
NEVER_COPIED = -3  # in the place of a slot, for rows that do not travel
_CLOCK_BYTES = 4  # what asking with a clock costs more than asking without
_CHECKS_BEFORE_JUDGEMENT = 16


@dataclass(frozen=True)
class PendingRows:
    """Updates of some copies, on their way to the owner."""

    slots: Int64[Tensor, " n"]
    ids: Int64[Tensor, " n"]
    gradients: Float[Tensor, "n dim"]
    ticks: Int64[Tensor, " n"]
    squares: Float[Tensor, "n _"] | None


class RowCopies(nn.Module):
    """A bounded number of copies of the rows of one group. Ids count from the group's first row.

    Args:
        group: Width and type of the rows.
        num_slots: How many copies there is room for.
        policy: What is admitted, and what gives way.
        num_workers: How many ranks' gradients the owner averages.
        bytes_per_row: What a row, or a gradient, costs to send.
        seed: The store's, for rows in half precision.
    """

    slot_of: Tensor
    ids: Tensor
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
        super().__init__()
        self._first_id, self._seed = group.start, seed
        self.policy = policy
        self._rule: UpdateRule | None = None
        self._num_workers = num_workers
        self._bytes_per_row = bytes_per_row
        fill = torch.full
        self.register_buffer("slot_of", fill((group.num_rows,), _NOT_HERE, dtype=torch.int32))
        self.register_buffer("ids", fill((num_slots,), -1, dtype=torch.int64))
        self.register_buffer("clocks", fill((num_slots,), -1, dtype=torch.int64))
        self.register_buffer("ticks", torch.zeros(num_slots, dtype=torch.int64))
        self.register_buffer("leftover", torch.zeros(num_slots, dtype=torch.bool))
        self.register_buffer("rows", torch.zeros(num_slots, group.dim, dtype=group.dtype))
        self.register_buffer("pending", torch.zeros(num_slots, group.dim))
        self.register_buffer("checks", torch.zeros(num_slots, dtype=torch.int32))
        self.register_buffer("balance", torch.zeros(num_slots, dtype=torch.int64))

    def bind(self, rule: UpdateRule) -> None:
        """Preview updates by this rule; the first one makes room for its state."""
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

    def find(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """The slot of each row, negative where there is no copy."""
        return self.slot_of.index_select(0, ids).long()

    def held_clocks(self, slots: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """Start clocks of copies; -1 where there is no copy, or its value is not to be used."""
        return torch.where(slots >= 0, self.clocks[slots.clamp_min(0)], -1)

    def admit(
        self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]
    ) -> tuple[Int64[Tensor, " n"], PendingRows, int]:
        """Note that a step reads rows, and make room for those without a copy, as the policy says.

        Args:
            ids: Rows that may have a copy, ascending.
            slots: Where `find` found them.

        Returns:
            Their slots now, the pending updates of what gave way, and how many gave way.
        """
        known = slots != _NOT_WORTH_IT
        self.policy.used(ids[known], slots[known])
        missing = slots == _NOT_HERE
        taken = self.ids >= 0
        num_free = taken.shape[0] - int(taken.sum())
        evictable = taken.index_fill(0, slots[slots >= 0], False)
        chosen, victims = self.policy.choose(ids[missing], num_free, evictable)
        evicted = self.take_pending(victims[self.is_dirty(victims)])
        self._empty(victims, _NOT_HERE)
        admitted = ids[missing][chosen]
        num_new = admitted.shape[0] - victims.shape[0]
        free = (~taken).nonzero().flatten()[:num_new] if num_new else victims[:0]
        places = torch.cat([free, victims])
        self.slot_of[admitted] = places.to(torch.int32)
        self.ids[places] = admitted
        self.policy.admitted(admitted, places)
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
        """Apply gradients to copies, and add them to what is pending.

        Args:
            slots: Of the copies, each once.
            gradients: Σg over one batch or several.
            ticks: How many.
            squares: What the rule sums beside it; `None` for one batch.
            as_sent: Gradients as they will arrive at their owner.
        """
        assert self._rule is not None
        self.pending.index_add_(0, slots, gradients)
        self.ticks.index_add_(0, slots, ticks)
        shown = gradients
        if not self._rule.merges_batches:
            shown = as_sent(self.pending.index_select(0, slots))
        self._step(slots, shown, ticks, squares)
        self.balance.index_add_(0, slots, torch.full_like(slots, self._bytes_per_row))
        own = self._rule.square(gradients) if squares is None else squares
        if own is not None:
            self.get_buffer("squares").index_add_(0, slots, own)

    def due(self, write_staleness: float) -> Int64[Tensor, " _"]:
        """Slots with more ticks than may wait."""
        return (self.ticks > write_staleness).nonzero().flatten()

    def dirty(self) -> Int64[Tensor, " _"]:
        """Slots with any update that their owner does not have."""
        return ((self.ticks > 0) | self.leftover).nonzero().flatten()

    def is_dirty(self, slots: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Whether there is any update that the owners of these copies do not have."""
        return (self.ticks.index_select(0, slots) > 0) | self.leftover.index_select(0, slots)

    def take_pending(self, slots: Int64[Tensor, " n"]) -> PendingRows:
        """The pending updates of copies, in ascending order of ids."""
        ids, order = self.ids[slots].sort()
        slots = slots[order]
        return PendingRows(slots, ids, *self._pending(slots))

    def settle(self, pushed: PendingRows, sent: Float[Tensor, "n dim"]) -> None:
        """Note that updates were pushed; what rounding left out of them stays pending.

        That is an update only for a rule that merges batches (see the module's text). Own updates
        count as seen: the start clock moves by their ticks.

        Args:
            pushed: What was pushed.
            sent: Its gradients as they arrived.
        """
        slots = pushed.slots
        held = self.clocks.index_select(0, slots) >= 0
        self.clocks.index_add_(0, slots, torch.where(held, pushed.ticks, 0))
        rest = pushed.gradients - sent
        self.pending.index_copy_(0, slots, rest)
        if self._rule is None or self._rule.merges_batches:
            self.leftover.index_copy_(0, slots, rest.abs().amax(dim=1) > 0)
        self.ticks.index_fill_(0, slots, 0)
        self.balance.index_add_(0, slots, torch.full_like(slots, -self._bytes_per_row))
        if pushed.squares is not None:
            self.get_buffer("squares").index_fill_(0, slots, 0.0)

    def answer(
        self,
        slots: Int64[Tensor, " n"],
        stale: Bool[Tensor, " n"],
        rows: Float[Tensor, "k dim"],
        clocks: Int64[Tensor, " n"],
        state: Mapping[str, Float[Tensor, "k _"]],
    ) -> tuple[Float[Tensor, "n dim"], dict[str, Float[Tensor, "n _"]], Int64[Tensor, " n"]]:
        """Take in what owners sent, and give what a step is to read: rows, state and clocks.

        Args:
            slots: Of the rows that are read; negative for those without a copy, which were sent.
            stale: Which rows were sent.
            rows: Those rows.
            clocks: Their clocks; without a meaning for rows that were not sent.
            state: Their optimizer state.
        """
        line = stale.cumsum(0) - 1
        here = slots >= 0
        renewed = (here & stale).nonzero().flatten()
        self._renew(slots[renewed], rows, line[renewed], clocks[renewed], state)
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

    def judge(self, slots: Int64[Tensor, " n"], was_valid: Bool[Tensor, " n"]) -> None:
        """Count what asking after copies has cost and saved, and give up those that do not pay.

        Args:
            slots: Copies whose owner was asked whether they are still valid.
            was_valid: The answers.
        """
        self.checks.index_add_(0, slots, torch.ones_like(slots, dtype=torch.int32))
        self.balance.index_add_(0, slots, was_valid * self._bytes_per_row - _CLOCK_BYTES)
        checks, balance = (t.index_select(0, slots) for t in (self.checks, self.balance))
        hopeless = slots[(checks >= _CHECKS_BEFORE_JUDGEMENT) & (balance < 0)]
        if hopeless.numel():
            self._empty(hopeless[~self.is_dirty(hopeless)], _NOT_WORTH_IT)

    def forget_values(self) -> None:
        """Use no copy again before it has been read anew; give what was given up a new chance.

        What rounding has left out and is no update is dropped.
        """
        self.pending.masked_fill_(((self.ticks == 0) & ~self.leftover).unsqueeze(1), 0.0)
        self.clocks.fill_(-1)
        self.checks.zero_()
        self.balance.zero_()
        self.slot_of[self.slot_of == _NOT_WORTH_IT] = _NOT_HERE

    def directory(self) -> dict[str, Tensor]:
        """Which rows have copies and what the policy knows: all that outlives the values."""
        policy = {f"policy.{name}": value for name, value in self.policy.state_dict().items()}
        return {"ids": self.ids, **policy}

    def fits_directory(self, saved: Mapping[str, Tensor]) -> bool:
        """Whether `directory` of copies like these gave it."""
        here = self.directory()
        if here.keys() != saved.keys() or any(
            here[n].shape != value.shape or here[n].dtype != value.dtype
            for n, value in saved.items()
        ):
            return False
        held = saved["ids"][saved["ids"] >= 0]
        return bool((held < self.slot_of.shape[0]).all()) and len(held.unique()) == len(held)

    def load_directory(self, saved: Mapping[str, Tensor]) -> None:
        """Take over what `directory` gave; values are read anew."""
        self.ids.copy_(saved["ids"])
        self.slot_of.fill_(_NOT_HERE)
        slots = (self.ids >= 0).nonzero().flatten()
        self.slot_of[self.ids[slots]] = slots.to(torch.int32)
        self.forget_values()
        self.policy.load_state_dict(under("policy.", saved))

    def _empty(self, slots: Int64[Tensor, " n"], mark: int) -> None:
        """Give up copies; their pending updates must be on their way."""
        ids = self.ids.index_select(0, slots)
        self.policy.removed(ids, slots)
        self.slot_of.index_fill_(0, ids, mark)
        self.ids.index_fill_(0, slots, -1)
        self.clocks.index_fill_(0, slots, -1)
        for buffer in (self.ticks, self.leftover, self.pending, self.checks, self.balance):
            buffer.index_fill_(0, slots, 0)
        if "squares" in self._buffers:
            self.get_buffer("squares").index_fill_(0, slots, 0.0)

    def _pending(self, slots: Int64[Tensor, " n"]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Gradients, ticks and squares that wait with copies."""
        summed = self.get_buffer("squares") if "squares" in self._buffers else None
        squares = None if summed is None else summed.index_select(0, slots)
        return self.pending.index_select(0, slots), self.ticks.index_select(0, slots), squares

    def _renew(
        self, slots: Tensor, rows: Tensor, line: Tensor, clocks: Tensor, state: Mapping[str, Tensor]
    ) -> None:
        """Replace copies by lines of what owners sent, and apply what is pending to them."""
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
        """Apply updates to copies that `ticks` have counted, as an owner does with a push."""
        assert self._rule is not None
        names = self._rule.state_widths(self.rows.shape[1])
        rows = self.rows.index_select(0, slots).float()
        state = {n: self.get_buffer(f"state_{n}").index_select(0, slots) for n in names}
        self._apply_rule(rows, state, gradients, ticks, squares)
        if is_half_precision(self.rows.dtype):
            ids = self.ids.index_select(0, slots) + self._first_id
            clocks = self.clocks.index_select(0, slots) + self.ticks.index_select(0, slots)
            keys = rounding_keys(self._seed, ids, clocks, ticks)
            rows = round_at_random(rows, self.rows.dtype, keys)
        self.rows.index_copy_(0, slots, rows.to(self.rows.dtype))
        for name, value in state.items():
            self.get_buffer(f"state_{name}").index_copy_(0, slots, value)

    def _apply_rule(
        self,
        rows: Tensor,
        state: dict[str, Tensor],
        gradients: Tensor,
        ticks: Tensor,
        squares: Tensor | None,
    ) -> None:
        assert self._rule is not None
        mean = gradients / self._num_workers
        summed = None
        if squares is not None:
            several = ticks > 1
            found = squares_for(self._rule, (mean,), (squares,), several, self._num_workers)
            summed = None if found is None else found[0]
        self._rule.step(rows, state, mean, summed)


def under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a state whose names begin with a prefix, without it."""
    return {n.removeprefix(prefix): value for n, value in state.items() if n.startswith(prefix)}
