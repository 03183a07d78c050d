"""Numbering nodes in the order they are found.

The compiled way is a hash table whose size follows the number of nodes found, not that of the
graph. Each thread keeps its tables for its next call.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.kernels.compiled import compiled

_FEWEST_ENTRIES = 1 << 12
_MOST_ENTRIES_PER_NODE = 16  # of a table that is kept
_NARROW_IDS = 1 << 32
_held = threading.local()


class FoundNodes(ABC):
    """Distinct nodes in the order they are found."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of nodes found so far."""

    @abstractmethod
    def add(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions of ids; those that were not found yet are appended."""

    @abstractmethod
    def since(self, first: int) -> NDArray[np.int64]:
        """The nodes from position `first` on; valid until `release`."""

    def release(self) -> None:  # noqa: B027
        """Let this thread's next call reuse the memory. Nothing may be called after it."""


def found_nodes(kind: str, num_nodes: int, *, compiled: bool) -> FoundNodes:
    """An empty list of nodes.

    Args:
        kind: The node type; a thread keeps one table for each.
        num_nodes: Ids are below.
        compiled: Whether to use a compiled hash table, if there is one.
    """
    kernels = _kernels() if compiled else None
    return FoundByDict() if kernels is None else FoundByHash(kernels, kind, num_nodes)


class FoundByDict(FoundNodes):
    """The reference."""

    def __init__(self) -> None:
        self._position: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._position)

    def add(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:  # noqa: D102
        known = self._position
        return np.array([known.setdefault(i, len(known)) for i in ids.tolist()], np.int64)

    def since(self, first: int) -> NDArray[np.int64]:  # noqa: D102
        return np.fromiter(self._position, np.int64, len(self))[first:]


class FoundByHash(FoundNodes):
    """A hash table that doubles whenever it is half full.

    Args:
        kernels: The module of kernels.
        kind: The node type.
        num_nodes: Ids are below.
    """

    def __init__(self, kernels: Any, kind: str, num_nodes: int) -> None:
        self._kernels = kernels
        self._kind = kind
        self._is_wide = num_nodes > _NARROW_IDS
        self._num = np.zeros(1, np.int64)
        reused = _tables().pop(kind, None)
        self._entries = np.zeros(_FEWEST_ENTRIES, np.uint64) if reused is None else reused
        self._ids = np.empty(len(self._entries) // 2, np.int64)

    def __len__(self) -> int:
        return int(self._num[0])

    def add(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:  # noqa: D102
        values = np.ascontiguousarray(ids, np.int64)[:]
        values.flags.writeable = False
        positions = np.empty(len(values), np.int64)
        done = 0
        while True:
            done = self._kernels.number_nodes(
                self._entries, self._ids, self._num, self._is_wide, values, done, positions
            )
            if done == len(values):
                return positions
            self._grow()

    def since(self, first: int) -> NDArray[np.int64]:  # noqa: D102
        return self._ids[first : len(self)]

    def release(self) -> None:
        """Empty the table and keep it, unless it is far larger than what was found."""
        if len(self._entries) <= max(_FEWEST_ENTRIES, _MOST_ENTRIES_PER_NODE * len(self)):
            self._entries.fill(0)
            _tables()[self._kind] = self._entries

    def _grow(self) -> None:
        self._entries = np.zeros(2 * len(self._entries), np.uint64)
        ids = np.empty(len(self._entries) // 2, np.int64)
        ids[: len(self)] = self._ids[: len(self)]
        self._ids = ids
        self._kernels.index_nodes(self._entries, ids, len(self))


def _tables() -> dict[str, NDArray[np.uint64]]:
    """The empty tables of this thread, by node type."""
    if not hasattr(_held, "tables"):
        _held.tables = {}
    tables: dict[str, NDArray[np.uint64]] = _held.tables
    return tables


def _kernels() -> Any:
    return compiled("neighbors.found_numba")
