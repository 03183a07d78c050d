"""An item index that is searched while another process writes to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outsize.errors import ItemIndexError
from outsize.search import ItemIndex


@dataclass(frozen=True)
class IndexFacts:
    """What a search over an index says about it.

    Attributes:
        num_items: Items of the index.
        num_stale: Items that other versions of the model encoded.
        problem: Why its newest state could not be read, in one line; empty if it could.
    """

    num_items: int
    num_stale: int
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """As plain values; a problem only where there is one."""
        facts = {"num_items": self.num_items, "num_stale": self.num_stale}
        return {**facts, "problem": self.problem} if self.problem else facts


class IndexReader:
    """The newest state of an index, read-only; what is asked for is not counted.

    If the newest state cannot be read, the one before it remains.

    Args:
        path: The folder of the index.
        dim: Refuse an index of another dim.
        version: The version of the model whose queries are searched for.
    """

    def __init__(self, path: str | Path, dim: int, version: str) -> None:
        self._index = ItemIndex.open(path, dim=dim)
        self._version = version
        self._counted: tuple[Any, int] = (None, 0)
        self._problem = ""

    def newest(self) -> ItemIndex:
        """The index, with what was written since the last call."""
        try:
            self._index.reload()
            self._problem = ""
        except ItemIndexError as error:
            self._problem = str(error)
        return self._index

    def facts(self) -> IndexFacts:
        """What is in the state that was searched last."""
        state = self._index.state
        if self._counted[0] is not state:  # counting reads all rows
            fresh = self._index.versions().get(self._version, 0)
            self._counted = (state, len(self._index) - fresh)
        return IndexFacts(len(self._index), self._counted[1], self._problem)
