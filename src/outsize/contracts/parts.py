"""The rows a rank keeps, table by table, in a form that can be saved, moved and grown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


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
