"""Rows in the memory of this process, on the CPU or on one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from outsize.contracts import RowReply, RowStore, RowUpdate, Shard, TablePart
from outsize.contracts.updates import stepped_rows
from outsize.errors import ConfigError
from outsize.initialization import fill_initial_rows
from outsize.kernels.fused.fused import RowsInPlace, update_on_device
from outsize.kernels.gather.gather import Bags, read_lines
from outsize.kernels.huge_pages import prefer_huge_pages
from outsize.kernels.rows.rounding import rounding_keys
from outsize.kernels.rows.updates import UpdateRule
from outsize.spec import MemoryUse, TableSpec


class LocalStore(RowStore):
    """All rows in one tensor per group; each row has a clock and optimizer state.

    Args:
        specs: The tables.
        seed: Initial values are a function of (seed, table, row, column). The seed also drives the
            stochastic rounding of half-precision rows.
        device: Where the rows live.
        shard: Which rows to keep; by default all. Other rows must not be requested.
    """

    clocks: Tensor

    def __init__(
        self,
        specs: Sequence[TableSpec],
        seed: int = 0,
        device: torch.device | str = "cpu",
        shard: Shard | None = None,
    ) -> None:
        super().__init__(specs, seed)
        self.shard = shard or Shard()
        for index in range(len(self.layout.groups)):
            group, num_rows = self.layout.groups[index], self._num_rows(index)
            rows = torch.empty(num_rows, group.dim, dtype=group.dtype, device=device)
            self.register_buffer(f"rows_{index}", prefer_huge_pages(rows))
        num_clocks = self.shard.num_below(self.layout.num_rows)
        clocks = torch.empty(num_clocks, dtype=torch.int32, device=device)
        self.register_buffer("clocks", prefer_huge_pages(clocks).zero_())
        for part in self.parts():
            spec = self.layout.spec(part.table)
            fill_initial_rows(part.tensors["rows"], spec, seed, part.first, part.every)

    def rows(self, group: int) -> Float[Tensor, "rows dim"]:
        """All rows of a group, in place."""
        return self._tensor(f"rows_{group}")

    def span(self, table: str) -> slice:
        """The slice of a table within the rows of its group."""
        offset, below = self.layout.offsets[table], self.shard.num_below
        first = below(self.layout.groups[self.layout.group_of(table)].start)
        stop = offset + self.layout.spec(table).num_rows
        return slice(below(offset) - first, below(stop) - first)

    def state(self, group: int) -> dict[str, Float[Tensor, "rows width"]]:
        """Optimizer state of all rows of a group, in place."""
        if self.rule is None:
            return {}
        names = self.rule.state_widths(self.layout.groups[group].dim)
        return {name: self._tensor(f"state_{group}_{name}") for name in names}

    def _tensor(self, name: str) -> Tensor:
        """A buffer by its name; `get_buffer` also searches submodules, which takes longer."""
        found = self._buffers[name]
        assert found is not None
        return found

    def bind(self, rule: UpdateRule) -> None:  # noqa: D102
        if self.rule is None:
            for index, group in enumerate(self.layout.groups):
                for name, width in rule.state_widths(group.dim).items():
                    shape, fill = (self._num_rows(index), width), rule.state_fill(name)
                    state = prefer_huge_pages(torch.empty(shape, device=self._device()))
                    self.register_buffer(f"state_{index}_{name}", state.fill_(fill))
        elif type(rule) is not type(self.rule) or any(
            rule.state_widths(group.dim) != self.rule.state_widths(group.dim)
            for group in self.layout.groups
        ):
            raise ConfigError(
                f"this store's rows are trained by {self.rule}: {rule} cannot use its state; "
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
        behind: int | None = None
        if clocks is not None:
            ahead = self.clocks.index_select(0, self.shard.positions(ids)) - clocks
            stale = ahead > 0
            ids = ids[stale]
            behind = int(ahead[~stale].max()) if not bool(stale.all()) else None
        local = self._local(ids)
        newest = self.clocks.index_select(0, self.shard.positions(ids)).long()
        rows = tuple(self.rows(group).index_select(0, run) for group, run in enumerate(local))
        if clocks is None:
            return RowReply(stale, rows, newest)
        state = tuple(
            {name: part.index_select(0, run) for name, part in self.state(group).items()}
            for group, run in enumerate(local)
        )
        return RowReply(stale, rows, newest, state, behind)

    @torch.no_grad()
    def submit(self, update: RowUpdate | None) -> None:
        """Apply an update; it reads nothing, unlike `exchange`."""
        if update is not None and update.ids.numel():
            self._update(update)

    @torch.no_grad()
    def _read(self, ids: Int64[Tensor, " n"]) -> tuple[Float[Tensor, "_ _"], ...]:
        """Rows alone, without clocks."""
        runs = enumerate(self._local(ids))
        return tuple(read_lines(self.rows(group), run) for group, run in runs)

    def checkout(self, ids: Int64[Tensor, " n"]) -> tuple[Float[Tensor, "_ _"], ...]:  # noqa: D102
        runs = self.layout.split(ids)
        return tuple(
            self.pending.leaf(rows, run, group)
            for group, (rows, run) in enumerate(zip(self._read(ids), runs, strict=True))
        )

    def lines_of(  # noqa: D102
        self, group: int, ids: Int64[Tensor, " n"], bags: Bags | None
    ) -> Float[Tensor, "lines dim"] | None:
        if not self._is_at_hand():
            return None
        return read_lines(self.rows(group), ids - self.layout.groups[group].start, bags).float()

    def rows_in_place(self, group: int) -> RowsInPlace | None:  # noqa: D102
        if not self._is_at_hand():
            return None
        start = self.layout.groups[group].start
        state, clocks = self.state(group), self._clocks(group)
        return RowsInPlace(self.rows(group), state, clocks, start, self.seed)

    def _is_at_hand(self) -> bool:
        """Whether all rows are in this process, where kernels work, and nothing wraps them."""
        on_device = self.clocks.is_cpu or self.clocks.is_cuda
        return type(self) is LocalStore and self.shard == Shard() and on_device

    def parts(self) -> list[TablePart]:  # noqa: D102
        found: list[TablePart] = []
        for spec in self.layout.specs:
            group, own = self.layout.group_of(spec.name), self.span(spec.name)
            offset = self.layout.offsets[spec.name]
            position = self.shard.num_below(offset)
            state = {f"state.{name}": part[own] for name, part in self.state(group).items()}
            clocks = self.clocks[position : position + own.stop - own.start]
            tensors = {"rows": self.rows(group)[own], "clocks": clocks, **state}
            first = self.shard.id_at(position) - offset
            found.append(TablePart(spec.name, first, self.shard.count, tensors))
        return found

    def memory_by_table(self) -> dict[str, MemoryUse]:  # noqa: D102
        use: dict[str, MemoryUse] = {}
        for part in self.parts():
            state = [tensor for name, tensor in part.tensors.items() if name.startswith("state.")]
            use[part.table] = MemoryUse.of(
                {
                    "parameters": [part.tensors["rows"]],
                    "index": [part.tensors["clocks"]],
                    "optimizer": state,
                }
            )
        return use

    def _update(self, update: RowUpdate) -> None:
        rule = self._require_rule()
        first = 0
        for group, run in enumerate(self._local(update.ids)):
            own = slice(first, first := first + run.shape[0])
            if not run.numel():
                continue
            rows, state, clocks = self.rows(group), self.state(group), self._clocks(group)
            gradients, ticks = update.gradients[group].float(), update.ticks[own]
            squares = None if update.squares is None else update.squares[group]
            if rule.update(rows, state, clocks, run, gradients, ticks, squares):
                continue
            table = RowsInPlace(rows, state, clocks, self.layout.groups[group].start, self.seed)
            if self.shard == Shard() and update_on_device(
                table, rule.kernel_settings(), run, gradients, ticks, squares
            ):
                continue
            clocks.index_add_(0, run, ticks.to(torch.int32))
            touched_state = {name: part.index_select(0, run) for name, part in state.items()}
            touched = rows.index_select(0, run)
            keys = partial(self._rounding_keys, update, own)
            touched = stepped_rows(rule, touched, touched_state, gradients, squares, keys)
            rows.index_copy_(0, run, touched)
            for name, part in state.items():
                part.index_copy_(0, run, touched_state[name])

    def clocks_of(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """The clocks of rows, by store ids in any order."""
        return self.clocks.index_select(0, self.shard.positions(ids)).long()

    def _clocks(self, group: int) -> Int32[Tensor, " rows"]:
        """The clocks of a group's rows, in place."""
        first = self.shard.num_below(self.layout.groups[group].start)
        return self.clocks[first : first + self._num_rows(group)]

    def _rounding_keys(self, update: RowUpdate, own: slice) -> Int64[Tensor, " _"]:
        """Rounding keys for a slice of an update whose ticks the clocks include already."""
        ids = update.ids[own]
        clocks = self.clocks.index_select(0, self.shard.positions(ids)).long()
        return rounding_keys(self.seed, ids, clocks, update.ticks[own])

    def _local(self, ids: Int64[Tensor, " n"]) -> list[Int64[Tensor, " _"]]:
        """Split ascending store ids by group, as row numbers within the group."""
        runs = zip(self.layout.split(ids), self.layout.groups, strict=True)
        positions, below = self.shard.positions, self.shard.num_below
        return [positions(run) - below(group.start) for run, group in runs]

    def _num_rows(self, group: int) -> int:
        start, stop = self.layout.groups[group].start, self.layout.groups[group].stop
        return self.shard.num_below(stop) - self.shard.num_below(start)
