"""The values of copies, their optimizer state and what is pending for them.

A copy takes an update as its owner would: by the owner's rule, in the rounding of the row's type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from outsize.contracts.layout import RowGroup
from outsize.contracts.updates import stepped_rows
from outsize.kernels.copies import passes
from outsize.kernels.copies.passes import CopyLines
from outsize.kernels.copies.updates import apply_pending
from outsize.kernels.fused.fused import RowsInPlace, update_on_device
from outsize.kernels.rows.rounding import is_half_precision, rounding_keys
from outsize.kernels.rows.updates import UpdateRule
from outsize.stores.copy_directory import CopyDirectory
from outsize.stores.eviction.policy import EvictionPolicy
from outsize.stores.merging import squares_for

_LINES = tuple(field.name for field in fields(CopyLines))  # each is a buffer


class CopyValues(CopyDirectory):
    """Copies of rows of one group; `RowCopies` has the protocol.

    Args:
        group: Width and type of the rows.
        num_slots: Maximum number of copies.
        policy: Chooses which rows are admitted and which copies are evicted.
        num_workers: Number of ranks whose gradients the owner averages.
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
        seed: int,
    ) -> None:
        super().__init__(group.num_rows, num_slots, policy)
        self._first_id, self._seed = group.start, seed
        self._rule: UpdateRule | None = None
        self._num_workers = num_workers
        self.register_buffer("clocks", torch.full((num_slots,), -1, dtype=torch.int64))
        self.register_buffer("ticks", torch.zeros(num_slots, dtype=torch.int32))
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
        return passes.held_clocks(self.lines(), slots)

    def is_dirty(self, slots: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Whether each of these copies has a pending update."""
        return passes.is_dirty(self.lines(), slots)

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
        copies, own_state = self.lines(), self.state()
        dirty = passes.refresh(copies, own_state, slots, stale, rows, clocks, state)
        if dirty.numel():
            self.apply_pending(dirty)
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

    def apply_pending(self, slots: Int64[Tensor, " n"]) -> None:
        """Apply pending updates again to copies that were replaced."""
        assert self._rule is not None
        if apply_pending(self.lines(), self.state(), self._rule, slots, self._num_workers):
            return
        gradients, ticks, squares = self._pending(slots)
        mean = gradients / self._num_workers
        summed = self._summed(mean, ticks, squares)
        # Their ticks are counted already.
        if not self._update(slots, mean, torch.zeros_like(ticks), summed):
            self._step(slots, mean, ticks, summed)

    def lines(self) -> CopyLines:
        """The tensors that passes work on."""
        return CopyLines(*map(self._buffers.get, _LINES))  # type: ignore[arg-type]

    def state(self) -> dict[str, Tensor]:
        """Optimizer state of the copies, in place."""
        if self._rule is None:
            return {}
        names = self._rule.state_widths(self.rows.shape[1])
        return {name: self._tensor(f"state_{name}") for name in names}

    def _tensor(self, name: str) -> Tensor:
        """A buffer by its name; `get_buffer` also searches submodules, which takes longer."""
        found = self._buffers[name]
        assert found is not None
        return found

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

    def _update(self, slots: Tensor, mean: Tensor, ticks: Tensor, squares: Tensor | None) -> bool:
        """Count ticks and do what `_step` does, in place; false if no kernel can."""
        assert self._rule is not None
        state = self.state()
        if self._rule.update(self.rows, state, self.ticks, slots, mean, ticks, squares):
            return True
        if is_half_precision(self.rows.dtype):  # rounded by row, which the kernel takes for a slot
            return False
        return update_on_device(
            RowsInPlace(self.rows, state, self.ticks), self._rule.kernel_settings(), slots, mean,
            ticks, squares,
        )  # fmt: skip

    def _step(self, slots: Tensor, mean: Tensor, ticks: Tensor, squares: Tensor | None) -> None:
        """Apply updates to copies as an owner applies a push; ticks are counted already."""
        assert self._rule is not None
        state = {name: part.index_select(0, slots) for name, part in self.state().items()}

        def keys() -> Int64[Tensor, " n"]:
            ids = self.ids.index_select(0, slots) + self._first_id
            clocks = self.clocks.index_select(0, slots) + self.ticks.index_select(0, slots)
            return rounding_keys(self._seed, ids, clocks, ticks)

        copies = self.rows.index_select(0, slots)
        rows = stepped_rows(self._rule, copies, state, mean, squares, keys)
        self.rows.index_copy_(0, slots, rows)
        for name, value in state.items():
            self._tensor(f"state_{name}").index_copy_(0, slots, value)
