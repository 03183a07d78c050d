"""From raw ids of nodes, of any kind, to 0 … n − 1.

If all ids of a node type are integers, they are compared as numbers; otherwise all are compared as
text, by 64-bit keys (`outsize.data.encoding.text_keys`).
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.encoding.column_values import to_text
from outsize.data.encoding.ids import values_of_keys
from outsize.data.encoding.text_keys import Column, text_keys
from outsize.errors import DataError

_LEAST_PENDING = 1 << 21
_SMALL = 1 << 28  # a bitmap of integers below this takes 256 MB


class NotIntegersError(Exception):
    """Ids that were taken for integers are not."""


def id_keys(column: Column, *, as_text: bool) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A 64-bit key for each id of a column, and a mask of those that are missing.

    Args:
        column: A pyarrow array.
        as_text: Whether ids are compared as text.

    Raises:
        NotIntegersError: An id is not an integer, and `as_text` is false.
    """
    if not as_text:
        return _integers(column)
    text, wrong = _texts(column)
    keys = np.append(text_keys(text.values).view(np.int64), 0)[text.codes]
    missing = text.codes < 0
    return keys, missing if wrong is None else missing | wrong


def _texts(column: Column) -> Any:
    import pyarrow as pa

    if pa.types.is_floating(column.type):  # integers with missing ones among them, in pandas
        with contextlib.suppress(pa.ArrowInvalid):
            column = column.cast(pa.int64())
    try:
        return to_text(column)
    except pa.ArrowException:
        raise DataError(f"ids of type {column.type!s:.60} are neither text nor numbers") from None


def _integers(column: Column) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    try:
        if is_number:
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
                column = pc.if_else(pc.is_nan(column), None, column)
            numbers = column.cast(pa.int64())
        else:
            column = column.cast(pa.large_string())
            numbers = column.cast(pa.int64())
            # "007" and "7" are different ids
            same = pc.equal(numbers.cast(pa.large_string()), column)
            if not pc.all(same, min_count=0).as_py():
                raise NotIntegersError
    except pa.ArrowException:
        raise NotIntegersError from None
    if not numbers.null_count:
        return numbers.to_numpy(zero_copy_only=False), np.zeros(len(numbers), bool)
    missing = numbers.is_null().to_numpy(zero_copy_only=False)
    return pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False), missing


def id_names(column: Column, rows: NDArray[np.int64], *, as_text: bool) -> Column:
    """Some ids of a column in the form in which they are kept as names."""
    import pyarrow as pa

    if not as_text:
        keys, _ = _integers(column)
        return pa.array(keys[rows])
    text, _ = _texts(column)
    return text.values.take(pa.array(text.codes[rows]))


class NodeIds:
    """The numbers of nodes by their raw ids.

    Args:
        keys: The key of each node.
        names: The raw id of each node, a pyarrow array.
        as_text: Whether ids are compared as text.
    """

    def __init__(self, keys: NDArray[np.int64], names: Column, *, as_text: bool) -> None:
        self.num_nodes = len(keys)
        self.as_text = as_text
        self._raw = keys
        numbers = np.arange(len(keys))
        self._is_range = not as_text and np.array_equal(keys, numbers)
        self.names = None if self._is_range else names
        self._table: NDArray[np.int64] | None = None
        self._order = self._keys = np.zeros(0, np.int64)
        if self._is_range:
            return
        if not as_text and len(keys) and keys.min() >= 0 and keys.max() < 4 * len(keys):
            self._table = np.full(int(keys.max()) + 1, -1)
            self._table[keys] = numbers
        else:
            self._order = np.argsort(keys, kind="stable")
            self._keys = keys[self._order]

    def repeated(self) -> tuple[int, int] | None:
        """The first two nodes with the same raw id, if there are any."""
        if self._is_range or (
            self._table is not None
            and np.array_equal(self._table[self._raw], np.arange(self.num_nodes))
        ):
            return None
        order = np.argsort(self._raw, kind="stable")
        keys = self._raw[order]
        repeats = np.flatnonzero(keys[1:] == keys[:-1])
        if not len(repeats):
            return None
        first = repeats[np.argmin(order[repeats + 1])]
        return int(order[first]), int(order[first + 1])

    def numbers(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """The node of each key; −1 if there is none."""
        if self._is_range:
            return np.where((keys >= 0) & (keys < self.num_nodes), keys, -1)
        if self._table is not None:
            inside = (keys >= 0) & (keys < len(self._table))
            return np.where(inside, self._table[np.where(inside, keys, 0)], -1)
        return values_of_keys(keys, self._keys, self._order, -1)


class IdScan:
    """Collects the ids of nodes that no file lists, from the columns of edges.

    Integers are numbered in ascending order, texts in the order of their first appearance.

    Args:
        as_text: Whether ids are compared as text.
    """

    def __init__(self, *, as_text: bool) -> None:
        self._as_text = as_text
        self._is_seen = np.zeros(0, bool)  # small integers
        self._known = np.zeros(0, np.int64)  # all others, sorted
        self._keys: list[NDArray[np.int64]] = []  # in order of appearance
        self._names: list[Column] = []
        self._pending: list[tuple[NDArray[np.int64], Column]] = []
        self._num_pending = 0

    def add(self, column: Column) -> None:
        """Add the ids of a column; missing ones are left out."""
        keys, missing = id_keys(column, as_text=self._as_text)
        rows = np.flatnonzero(~missing)
        if not self._as_text:
            keys = self._without_small(keys[rows])
            if len(keys):
                self._pending.append((_distinct(keys), None))
        elif len(rows):
            _, first = np.unique(keys[rows], return_index=True)
            rows = rows[np.sort(first)]
            keys = keys[rows]
            self._pending.append((keys, id_names(column, rows, as_text=True)))
        self._num_pending += len(keys)
        if self._num_pending >= max(_LEAST_PENDING, len(self._known)):
            self._merge()

    def finish(self) -> NodeIds:
        """The numbers of all ids that were added."""
        import pyarrow as pa

        self._merge()
        if not self._as_text:
            known = np.concatenate((np.flatnonzero(self._is_seen), self._known))
            known.sort(kind="stable")  # of two sorted parts: one merge
            return NodeIds(known, pa.array(known), as_text=False)
        names = pa.concat_arrays(self._names) if self._names else pa.array([], pa.large_string())
        keys = np.concatenate([np.zeros(0, np.int64), *self._keys])
        return NodeIds(keys, names, as_text=True)

    def _without_small(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Remember small integers in a bitmap; returns the others."""
        is_small = (keys >= 0) & (keys < _SMALL)
        small = keys if is_small.all() else keys[is_small]
        size = int(small.max(initial=-1)) + 1
        if size > len(self._is_seen):
            grown = np.zeros(min(_SMALL, 2 * size), bool)
            grown[: len(self._is_seen)] = self._is_seen
            self._is_seen = grown
        self._is_seen[small] = True
        return keys[~is_small]

    def _merge(self) -> None:
        import pyarrow as pa

        if not self._pending:
            return
        keys = np.concatenate([keys for keys, _ in self._pending])
        if self._as_text:
            found, first = np.unique(keys, return_index=True)
            if len(self._known):
                places = np.searchsorted(self._known, found).clip(max=len(self._known) - 1)
                first = first[self._known[places] != found]
            rows = np.sort(first)
            values = pa.concat_arrays([names for _, names in self._pending])
            keys = keys[rows]
            self._keys.append(keys)
            self._names.append(values.take(pa.array(rows)))
        self._known = _distinct(np.concatenate((self._known, keys)))
        self._pending, self._num_pending = [], 0


def _distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorted distinct keys; `numpy.unique` is slow for many of them, as it may hash."""
    keys = np.sort(keys)
    if len(keys):
        keys = keys[np.append(True, keys[1:] != keys[:-1])]
    return keys
