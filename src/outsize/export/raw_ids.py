"""Raw ids of nodes and raw values of attributes → their numbers, in columns and in lists."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.encoding.column_values import to_text
from outsize.data.encoding.text_keys import Column, text_keys
from outsize.data.graphs.raw_ids import NodeIds, NotIntegersError, id_keys
from outsize.errors import DataError

_LARGEST = np.iinfo(np.int64).max


class RawIds:
    """Raw ids → numbers, compared as the graph compares them: as integers, or as text.

    Args:
        names: The raw id of each number, a pyarrow array; `None` if they are the numbers.
        count: How many there are.
    """

    def __init__(self, names: Any, count: int) -> None:
        import pyarrow as pa

        self._as_text = names is not None and not pa.types.is_integer(names.type)
        if names is None:
            keys = np.arange(count)
        elif self._as_text:
            keys = text_keys(names.cast(pa.large_string())).view(np.int64)
        else:
            keys = names.to_numpy(zero_copy_only=False).astype(np.int64)
        self._ids = NodeIds(keys, names, as_text=self._as_text)

    def numbers(self, column: Column) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The number of each id of a column, −1 if it is unknown, and a mask of missing ones."""
        try:
            keys, missing = id_keys(column, as_text=self._as_text)
        except NotIntegersError:
            return self._integers_among(column)
        return np.where(missing, -1, self._ids.numbers(keys)), missing

    def rows_of(self, values: Column) -> NDArray[np.int64]:
        """The number of each id of a column; −1 if it is unknown."""
        return self.numbers(values)[0]

    def _integers_among(self, column: Column) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The same for a column with ids that are not integers, and so unknown."""
        text, wrong = to_text(column)
        parsed = [_integer(value) for value in text.values.to_pylist()]
        keys = np.array([0 if key is None else key for key in [*parsed, None]], np.int64)
        numbers = self._ids.numbers(keys)
        numbers[[key is None for key in [*parsed, None]]] = -1
        missing = text.codes < 0
        return numbers[text.codes], missing if wrong is None else missing | wrong


def split_lists(column: Column, separator: str) -> tuple[NDArray[np.int64], Column]:
    """The number of values of each row, and the values of all rows.

    Args:
        column: Lists; texts of values with a separator between them; or single values.
        separator: The separator.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
    if str(column.type) in ("string", "large_string", "string_view", "binary", "large_binary"):
        texts = column.cast(pa.large_binary()).cast(pa.large_string())
        column = pc.split_pattern(texts, separator)
        counts, flat = split_lists(column, separator)
        trimmed = pc.utf8_trim_whitespace(flat)
        return _filtered(counts, trimmed, pc.not_equal(trimmed, ""))
    if pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_type))
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        lengths = pc.fill_null(pc.list_value_length(column), 0)
        flat = column.flatten()
    else:
        lengths, flat = pa.array(np.ones(len(column), np.int64)), column
    counts = np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)
    return _filtered(counts, flat, flat.is_valid())


def _filtered(
    counts: NDArray[np.int64], flat: Column, is_kept: Column
) -> tuple[NDArray[np.int64], Column]:
    """Lists without some of their values."""
    is_used = np.asarray(is_kept.to_numpy(zero_copy_only=False), bool)
    if is_used.all():
        return counts, flat
    ends = np.concatenate((np.zeros(1, np.int64), counts.cumsum()))
    before = np.concatenate((np.zeros(1, np.int64), is_used.cumsum()))
    return np.diff(before[ends]), flat.filter(is_kept)


def naming_column(path: Any, name: str, column: Column, error: Exception) -> DataError:
    """The error for a column that holds no ids."""
    return DataError(
        f"{'the rows' if path is None else path}: column {name!r} of {column.type!s:.60} cannot be "
        f"read as ids: {' '.join(str(error).split())[:120]}"
    )


def _integer(text: str) -> int | None:
    """A text as an integer, if it is written as integers are."""
    if not text.isascii() or not text.removeprefix("-").isdigit():
        return None
    number = int(text)
    return number if str(number) == text and abs(number) <= _LARGEST else None
