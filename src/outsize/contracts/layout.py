"""One id space for all tables of a store.

A row has a *store id*: the offset of its table plus its id in the table. Tables of equal width and
type are adjacent and form a *group*, whose rows fit into one tensor. Ascending store ids therefore
come group by group. Whatever has one number per row (ids, clocks, ticks) is one flat tensor over
all tables; vectors are one tensor per group. Most models have a single group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.errors import ConfigError
from outsize.spec import TableSpec
from outsize.suggestions import few


@dataclass(frozen=True)
class RowGroup:
    """Tables of one width and type, and the store ids `[start, stop)` they cover."""

    dim: int
    dtype: torch.dtype
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """Number of rows of all its tables."""
        return self.stop - self.start


class RowLayout:
    """Maps tables to ranges of store ids.

    Attributes:
        specs: The tables in the order of their store ids.
        offsets: Table name → store id of its row 0.
        groups: Runs of tables with equal width and type, in the order of store ids.
        num_rows: Number of rows of all tables.
    """

    def __init__(self, specs: Sequence[TableSpec]) -> None:
        if not specs:
            raise ConfigError("a store needs at least one table, but got none")
        kinds = list(dict.fromkeys((spec.dim, spec.dtype) for spec in specs))
        self.specs = tuple(sorted(specs, key=lambda spec: kinds.index((spec.dim, spec.dtype))))
        self.offsets: dict[str, int] = {}
        groups: list[RowGroup] = []
        next_id = 0
        for spec in self.specs:
            if spec.name in self.offsets:
                raise ConfigError(f"two tables are named {spec.name!r}: give each its own name")
            self.offsets[spec.name] = next_id
            start = next_id
            if groups and (groups[-1].dim, groups[-1].dtype) == (spec.dim, spec.dtype):
                start = groups.pop().start
            next_id += spec.num_rows
            groups.append(RowGroup(spec.dim, spec.dtype, start, next_id))
        self.groups = tuple(groups)
        self.num_rows = next_id

    @property
    def is_one_group(self) -> bool:
        """Whether all tables have one width and type."""
        return len(self.groups) == 1

    def facts(self) -> str:
        """A description of the tables, which must be equal on all ranks that share them."""
        return "; ".join(
            f"table {spec.name!r} of {spec.num_rows} rows of {spec.dim} "
            f"{str(spec.dtype).removeprefix('torch.')}"
            for spec in self.specs
        )

    def spec(self, table: str) -> TableSpec:
        """The spec of a table; the error lists the tables of the store."""
        for spec in self.specs:
            if spec.name == table:
                return spec
        raise ConfigError(
            f"no table {table!r} in this store; it holds {few(sorted(self.offsets), table)}"
        )

    def group_of(self, table: str) -> int:
        """The index of the group a table belongs to."""
        offset = self.offsets[self.spec(table).name]
        return next(i for i, group in enumerate(self.groups) if group.start <= offset < group.stop)

    def split(self, ids: Int64[Tensor, " n"]) -> list[Int64[Tensor, " _"]]:
        """Split ascending store ids into one run per group; they stay store ids."""
        if len(self.groups) == 1:
            return [ids]
        return list(ids.split(self.group_sizes(ids)))

    def group_sizes(self, ids: Int64[Tensor, " n"]) -> list[int]:
        """How many of these ascending store ids are in each group."""
        if len(self.groups) == 1:
            return [ids.shape[0]]
        stops = torch.tensor([group.stop for group in self.groups], device=ids.device)
        ends = torch.searchsorted(ids, stops)
        return [int(size) for size in ends.diff(prepend=ends.new_zeros(1)).tolist()]


@dataclass(frozen=True)
class TablePart:
    """Rows of one table, in place: writing to its tensors writes to the store.

    Attributes:
        table: Name of the table.
        first: The first row, as an id of the table.
        every: Stride.
        tensors: "rows", "clocks" and "state.<name>" → one line per row.
    """

    table: str
    first: int
    every: int
    tensors: Mapping[str, Tensor]

    @property
    def num_rows(self) -> int:
        """Number of rows in this part."""
        return self.tensors["rows"].shape[0]

    @property
    def rows(self) -> range:
        """The rows in this part, as ids of the table."""
        return range(self.first, self.first + self.every * self.num_rows, self.every)
