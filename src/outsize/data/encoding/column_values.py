"""Columns of pyarrow as numbers, times and texts, with masks of the values that are none."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from outsize.data.encoding.ids import CodedText
from outsize.data.encoding.text_keys import Column
from outsize.data.encoding.unreadable import UNREADABLE

TEXT_TYPES = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
_FEW_VALUES = 64
_GROUPED = r"^\s*[+-]?[0-9]{1,3}([. ][0-9]{3})+(,[0-9]*)?\s*$"
"""A number such as 1.234,5, whose thousands are marked."""


def to_numbers(
    column: Column, decimal: str = "."
) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """A column as float64, NaN if missing, and a mask of invalid numbers, if there are any.

    Args:
        column: Numbers, or texts.
        decimal: What separates the decimals of a number in a text, "." or ",".
    """
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_temporal(column.type):
        # Dates become days, times keep the unit they are stored in.
        is_short = pa.types.is_date32(column.type) or pa.types.is_time32(column.type)
        column = column.cast(pa.int32() if is_short else pa.int64())
    if decimal == "," and str(column.type) in TEXT_TYPES:
        column = _with_points(column)
    try:
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            column = column.cast(pa.large_string())
        numbers = column.cast(pa.float64(), safe=not pa.types.is_integer(column.type))
        return numbers.to_numpy(zero_copy_only=False), None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        coded = column.dictionary_encode()
    parsed = [_number(value) for value in _as_bytes(coded.dictionary).to_pylist()]
    values = np.array([np.nan if number is None else number for number in parsed] + [np.nan])
    wrong = np.array([number is None for number in parsed] + [False])
    codes = _codes(coded)
    return values[codes], wrong[codes]


def to_times(
    column: Column, time_format: str = ""
) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """Dates and times in texts as seconds since 1970, and a mask of those that are none, if any.

    Args:
        column: Text. Where there is no format and some are numbers, these stay as they are and
            all others are refused: dates among numbers would be of another scale.
        time_format: As for `strptime`; empty for ISO 8601. Times without a zone are UTC.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    codes, texts = _codes(coded), _as_bytes(coded.dictionary)
    if not time_format:
        values = texts.to_pylist()
        parsed = [_number(value) for value in values]
        if all(number is None for number in parsed):
            parsed = [_iso_time(value) for value in values]
    else:
        read = pc.strptime(
            texts.cast(pa.string()), format=time_format, unit="s", error_is_null=True
        )
        parsed = read.cast(pa.int64()).to_pylist()
    times = np.array([np.nan if time is None else time for time in parsed] + [np.nan])
    wrong = np.array([time is None for time in parsed] + [False])[codes]
    return times[codes], wrong if wrong.any() else None


def to_text(column: Column, separator: str = "|") -> tuple[CodedText, NDArray[np.bool_] | None]:
    """A column as distinct texts, and a mask of rows that are not valid UTF-8, if there are any.

    Lists are joined by the separator they would have in a text file; null elements are left out.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        kind = pa.list_ if pa.types.is_list(column.type) else pa.large_list
        column = pc.binary_join(_without_nulls(column).cast(kind(pa.string())), separator)
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    codes, values, wrong = _codes(coded), _as_bytes(coded.dictionary), None
    try:
        values = values.cast(pa.large_string())
    except pa.ArrowInvalid:
        if not pa.types.is_large_binary(values.type):
            raise
        values = pa.array([_text(value) for value in values.to_pylist()], pa.large_string())
    marked, empty = _marked_and_empty(values)
    if marked.any():
        wrong = np.append(marked, False)[codes]
    if empty.any():
        codes = np.where(np.append(empty, False)[codes], -1, codes)
    return CodedText(codes, values), wrong


def _marked_and_empty(values: Column) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks of texts that were marked as unreadable, and of empty ones."""
    import pyarrow.compute as pc

    if len(values) <= _FEW_VALUES:  # calls of pyarrow would take longer
        texts = values.to_pylist()
        marked = np.array([UNREADABLE in (text or "") for text in texts], bool)
        return marked, np.array([text == "" for text in texts], bool)
    marked = pc.match_substring(values, UNREADABLE).to_numpy(zero_copy_only=False).astype(bool)
    return marked, pc.equal(values, "").to_numpy(zero_copy_only=False).astype(bool)


def _without_nulls(lists: Column) -> Column:
    """Lists without their null elements; a null list stays null."""
    import pyarrow as pa

    if not lists.flatten().null_count:
        return lists
    cleaned = [
        None if members is None else [value for value in members if value is not None]
        for members in lists.to_pylist()
    ]
    return pa.array(cleaned, lists.type)


def _with_points(column: Column) -> Column:
    """Texts such as 3,14 and 1.234,5 as 3.14 and 1234.5; others are left for a check to refuse."""
    import pyarrow.compute as pc

    texts = _as_bytes(column)
    is_grouped = pc.match_substring_regex(texts, _GROUPED)
    ungrouped = pc.replace_substring_regex(texts, r"[. ]", "")
    others = pc.replace_substring(texts, ".", "..")  # a decimal point is no part of a number here
    return pc.replace_substring(pc.if_else(is_grouped, ungrouped, others), ",", ".")


def _as_bytes(values: Column) -> Column:
    """Convert text to bytes, so that invalid UTF-8 can be found; other types are unchanged."""
    import pyarrow as pa

    is_bytes = str(values.type) in TEXT_TYPES or pa.types.is_fixed_size_binary(values.type)
    return values.cast(pa.large_binary()) if is_bytes else values


def _codes(coded: Column) -> NDArray[np.int64]:
    """The indices of a dictionary array, −1 for null."""
    import pyarrow.compute as pc

    indices = coded.indices
    if indices.null_count:
        indices = pc.fill_null(indices.cast("int64"), -1)
    return np.asarray(indices.to_numpy(zero_copy_only=False), np.int64)


def _number(value: object) -> float | None:
    try:
        if isinstance(value, bytes):
            value = value.decode()
        if value == "":  # missing, as in a text file
            return np.nan
        return None if "_" in str(value) else float(str(value))
    except ValueError:
        return None


def _iso_time(value: object) -> float | None:
    try:
        time = datetime.fromisoformat(value.decode() if isinstance(value, bytes) else str(value))
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return UNREADABLE
