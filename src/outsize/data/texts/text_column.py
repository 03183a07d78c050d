"""Columns of texts: checked row by row while they are read, and made distinct afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.sources import Chunk
from outsize.data.encoding.text_keys import Column, text_keys
from outsize.data.encoding.unreadable import UNREADABLE
from outsize.data.texts.text_pairs import Texts
from outsize.errors import DataError
from outsize.suggestions import shortened

NOT_UTF8 = "text that is not UTF-8"
NOT_WHOLE = "a grade that is not a whole number"


def strings_of(chunk: Chunk, name: str, path: Path) -> Column:
    """A column of a file as an array of strings; refused if its values are lists or the like."""
    import pyarrow as pa

    values = chunk.columns[name]
    try:
        return as_strings(values)
    except pa.ArrowNotImplementedError:
        raise DataError(
            f"{path}: column {name!r} holds values of type {values.type!s:.100}, not texts: write "
            "one text per row"
        ) from None


def as_strings(values: Column) -> Column:
    """An array of strings, from strings, bytes, or numbers; bytes that are not UTF-8 are marked."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    try:
        return values.cast(pa.large_string())
    except pa.ArrowInvalid:
        raw = values.cast(pa.large_binary()).to_pylist()
        return pa.array([_readable(value) for value in raw], pa.large_string())


def _readable(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return UNREADABLE


def joined(parts: Sequence[Column]) -> Column:
    """Arrays of strings, one after the other."""
    import pyarrow as pa

    return pa.concat_arrays(parts) if parts else pa.array([], pa.large_string())


def is_empty(values: Column) -> NDArray[np.bool_]:
    """Which strings are null, or have nothing but white space."""
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(pc.equal(pc.utf8_trim_whitespace(values), ""), True))


def is_unreadable(values: Column) -> NDArray[np.bool_]:
    """Which strings hold the mark of bytes that are not UTF-8."""
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(pc.match_substring(values, UNREADABLE), False))


def good_rows(
    columns: Mapping[str, Column], bad: BadRows, path: Path, chunk: Chunk
) -> NDArray[np.bool_]:
    """Which rows have a text in every column; the others are counted.

    Args:
        columns: What a column holds, such as "query", with its strings.
        bad: Counts the rows that lack one, for the first that they lack.
        path: The file, for messages.
        chunk: Where the rows are in the file.
    """
    good = np.ones(chunk.num_rows, bool)
    bad.num_rows += len(good)
    for what, values in columns.items():
        for kind, flaws in ((f"an empty {what}", is_empty), (NOT_UTF8, is_unreadable)):
            found = flaws(values) & good
            chunk.refuse(bad, kind, found, path)
            good &= ~found
    return good


def whole_numbers(values: Column) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Grades, and which of them are whole numbers; the others count as 1."""
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(pc.fill_null(values, ""))
    is_number = np.asarray(pc.match_substring_regex(texts, r"^[+-]?\d{1,9}(\.0+)?$"))
    numbers = pc.if_else(is_number, texts, "1")
    return np.asarray(pc.cast(numbers, "double")).astype(np.int64), is_number


def distinct_texts(
    ids: Column | None, texts: Column, what: str, source: str
) -> tuple[Texts, NDArray[np.int64]]:
    """Texts without repetitions in the order of their first occurrence, and the row of each.

    Args:
        ids: The id of each text; `None` to tell texts apart by themselves, and to number them.
        texts: The texts.
        what: What they are, for messages: "query" or "item".
        source: The files they are from, for messages.

    Raises:
        DataError: Two texts have the same id.
    """
    import pyarrow as pa

    keys = text_keys(texts if ids is None else ids)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    if ids is not None and len(first) < len(keys):
        _require_same_texts(ids, texts, first[inverse], what, source)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    chosen = pa.array(first[order])
    numbers = pa.array(np.arange(len(first)))
    names = numbers.cast(pa.large_string()) if ids is None else ids.take(chosen)
    return Texts(names, texts.take(chosen)), rank[inverse]


def _require_same_texts(
    ids: Column, texts: Column, first: NDArray[np.int64], what: str, source: str
) -> None:
    """Refuse ids that stand for different texts."""
    import pyarrow as pa

    repeated = np.flatnonzero(first != np.arange(len(first)))
    own = text_keys(texts.take(pa.array(repeated)))
    differs = own != text_keys(texts.take(pa.array(first[repeated])))
    if differs.any():
        name = shortened(ids[int(repeated[differs][0])].as_py())
        others = f" and {more:,} more" if (more := int(differs.sum()) - 1) else ""
        raise DataError(
            f"{source}: two different texts have the {what} id {name!r}{others}: give each text an "
            "id of its own"
        )


class KnownIds:
    """Finds the rows of known texts by their ids, which are sorted once.

    Args:
        known: The texts.
    """

    def __init__(self, known: Texts) -> None:
        keys = text_keys(known.ids)
        self._order = np.argsort(keys)
        self._sorted = keys[self._order]

    def rows(self, ids: Column) -> NDArray[np.int64]:
        """The row of each id; −1 where there is none."""
        asked = text_keys(ids)
        if not len(self._sorted):
            return np.full(len(asked), -1)
        place = np.searchsorted(self._sorted, asked).clip(max=len(self._sorted) - 1)
        return np.where(self._sorted[place] == asked, self._order[place], -1)
