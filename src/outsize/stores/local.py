"""Rows in the memory of this process, on the CPU or on one GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.contracts import RowReply, RowStore, RowUpdate
from outsize.errors import ConfigError
from outsize.initialization import fill_initial_rows
from outsize.kernels.row_updates import UpdateRule
from outsize.spec import MemoryUse, TableSpec


class LocalStore(RowStore):
    """All rows in one tensor per group, with a clock and the optimizer's state beside each.

    Args:
        specs: The tables.
        seed: Rows start from values that are a function of (seed, table, row, column).
        device: Where the rows live.
    """

    clocks: Tensor

    def __init__(
        self,
        specs: Sequence[TableSpec],
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(specs)
        for index, group in enumerate(self.layout.groups):
            rows = torch.empty(group.num_rows, group.dim, dtype=group.dtype, device=device)
            self.register_buffer(f"rows_{index}", rows)
            for spec in self.layout.specs:
                offset = self.layout.offsets[spec.name] - group.start
                if self.layout.group_of(spec.name) == index:
                    fill_initial_rows(rows[offset : offset + spec.num_rows], spec, seed)
        clocks = torch.zeros(self.layout.num_rows, dtype=torch.int32, device=device)
        self.register_buffer("clocks", clocks)

    def rows(self, group: int) -> Float[Tensor, "rows dim"]:
        """All rows of a group, in place."""
        return self.get_buffer(f"rows_{group}")

    def state(self, group: int) -> dict[str, Float[Tensor, "rows width"]]:
        """Optimizer state of all rows of a group, in place."""
        if self.rule is None:
            return {}
        names = self.rule.state_widths(self.layout.groups[group].dim)
        return {name: self.get_buffer(f"state_{group}_{name}") for name in names}

    def bind(self, rule: UpdateRule) -> None:  # noqa: D102
        if self.rule is None:
            for index, group in enumerate(self.layout.groups):
                for name, width in rule.state_widths(group.dim).items():
                    fill = rule.state_fill(name)
                    state = torch.full((group.num_rows, width), fill, device=self._device())
                    self.register_buffer(f"state_{index}_{name}", state)
        elif type(rule) is not type(self.rule) or any(
            rule.state_widths(group.dim) != self.rule.state_widths(group.dim)
            for group in self.layout.groups
        ):
            raise ConfigError(
                f"this store's rows are trained by {self.rule}: {rule} cannot take over its state; "
                "make a new store, or keep the optimizer"
            )
        self.rule = rule

    @torch.no_grad()
    def exchange(  # noqa: D102
        self,
        update: RowUpdate | None,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None = None,
    ) -> RowReply:
        if update is not None and update.ids.numel():
            self._update(update)
        stale = torch.ones_like(ids, dtype=torch.bool)
        if clocks is not None:
            stale = self.clocks[ids] > clocks
            ids = ids[stale]
        local = self._local(ids)
        rows = tuple(self.rows(group).index_select(0, run) for group, run in enumerate(local))
        if clocks is None:
            return RowReply(stale, rows, self.clocks.index_select(0, ids).long())
        state = tuple(
            {name: part.index_select(0, run) for name, part in self.state(group).items()}
            for group, run in enumerate(local)
        )
        return RowReply(stale, rows, self.clocks.index_select(0, ids).long(), state)

    def memory_by_table(self) -> dict[str, MemoryUse]:  # noqa: D102
        use: dict[str, MemoryUse] = {}
        for spec in self.layout.specs:
            group = self.layout.group_of(spec.name)
            start = self.layout.offsets[spec.name] - self.layout.groups[group].start
            own = slice(start, start + spec.num_rows)
            use[spec.name] = MemoryUse.of(
                {
                    "parameters": [self.rows(group)[own]],
                    "index": [self.clocks[: spec.num_rows]],
                    "optimizer": [part[own] for part in self.state(group).values()],
                }
            )
        return use

    def _update(self, update: RowUpdate) -> None:
        if self.rule is None:
            raise ConfigError(
                "this store has no optimizer yet: make one first, such as outsize.RowSGD(store)"
            )
        self.clocks.index_add_(0, update.ids, update.ticks.to(torch.int32))
        for group, run in enumerate(self._local(update.ids)):
            if not run.numel():
                continue
            rows, state = self.rows(group), self.state(group)
            touched = rows.index_select(0, run).to(torch.float32)
            touched_state = {name: part.index_select(0, run) for name, part in state.items()}
            squares = None if update.squares is None else update.squares[group]
            self.rule.step(touched, touched_state, update.gradients[group].float(), squares)
            rows.index_copy_(0, run, touched.to(rows.dtype))
            for name, part in state.items():
                part.index_copy_(0, run, touched_state[name])

    def _local(self, ids: Int64[Tensor, " n"]) -> list[Int64[Tensor, " _"]]:
        """Ascending store ids as row numbers within each group."""
        runs = self.layout.split(ids)
        return [run - group.start for run, group in zip(runs, self.layout.groups, strict=True)]
