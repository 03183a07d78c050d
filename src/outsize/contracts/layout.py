"""One id space for all tables of a store.

A row has a *store id*: the offset of its table plus its own id. Tables of equal width and type
are neighbours and form a *group*, whose rows can lie in one tensor. Store ids in ascending order
therefore come group by group, and whatever has one number a row (ids, clocks, ticks) is one flat
tensor over all tables, while vectors are one tensor a group. Most models have a single group.
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
        """Rows of all its tables."""
        return self.stop - self.start


class RowLayout:
    """Where each table lies among the rows of a store.

    Attributes:
        specs: The tables in the order of their store ids.
        offsets: Table name → store id of its row 0.
        groups: Runs of tables with equal width and type, in the order of store ids.
        num_rows: Rows of all tables.
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

    def facts(self) -> str:
        """The tables in words, in their order: what ranks that share them must have alike."""
        return "; ".join(
            f"table {spec.name!r} of {spec.num_rows} rows of {spec.dim} "
            f"{str(spec.dtype).removeprefix('torch.')}"
            for spec in self.specs
        )

    def spec(self, table: str) -> TableSpec:
        """The spec of a table, or an error that names those there are."""
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
        """Cut ascending store ids into one run per group, still as store ids."""
        if len(self.groups) == 1:
            return [ids]
        return list(ids.split(self.group_sizes(ids)))

    def group_sizes(self, ids: Int64[Tensor, " n"]) -> list[int]:
        """How many of these ascending store ids fall into each group."""
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
        first: The table's row that comes first here.
        every: How far apart neighbours here are in the table.
        tensors: "rows", "clocks" and "state.<name>" → one line for each row kept here.
    """

    table: str
    first: int
    every: int
    tensors: Mapping[str, Tensor]

    @property
    def num_rows(self) -> int:
        """How many rows of the table are here."""
        return self.tensors["rows"].shape[0]
