"""What a sample says about the values of one column."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outsize.data.encoding.text_keys import Column

Form = Literal["number", "time", "text", "list", "other"]
_MISSING_WORDS = frozenset(
    ["na", "n/a", "#n/a", "nan", "null", "none", "nil", "missing", "?", "-", "--", ".", "\\n",
     "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity",
     "#div/0!", "#value!", "#ref!", "#num!", "#name?", "#null!"]
)  # fmt: skip
_COMMA_NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}([. ]\d{3})+),\d+|[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_WITH_UNIT = re.compile(
    r"[+-]?[$€£¥₹] ?[+-]?\d[\d.,]*|[+-]?\d[\d.,]* ?[%$€£¥₹]|\([$€£¥₹]? ?\d[\d.,]*\)"
)
_WITH_DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}([. ]\d{3})+)(,\d*)?")
_SURELY_COMMA = re.compile(r"[+-]?(\d+,(\d{1,2}|\d{4,})|\d{1,3}([. ]\d{3})+,\d+)")
_SURELY_POINT = re.compile(
    r"[+-]?(\d*\.(\d{1,2}|\d{4,})|0?\.\d+|\d{1,3}(,\d{3})+\.\d+|\d{1,3}(,\d{3}){2,})"
)
_LEADING_ZERO = re.compile(r"0\d")
_LARGEST = float(np.finfo(np.float32).max)
_LOOKED_AT = 1_000


@dataclass(frozen=True, eq=False)
class Profile:
    """One column of a sample.

    Attributes:
        name: Its name.
        form: What its values are, as they are stored or written.
        codes: For each row, the number of its value; −1 if it is missing.
        values: The distinct values as text.
        numbers: For each row, its value, NaN if missing or too large, for the forms "number" and
            "time".
        num_estimated: Distinct values in all files, estimated from the sample.
        is_stored_as_text: Whether the file says that it is text, as Parquet can.
        num_unreadable: Rows whose bytes are not UTF-8.
        num_too_large: Rows with an infinite number, or one that float32 cannot hold.
        missing_words: Texts among numbers that stand for missing values.
        comma_number: A value such as 3,14 or 1,000,000, if values are numbers that training cannot
            read for this; or such as $5 or 5%.
        decimal: What separates the decimals of its numbers.
    """

    name: str
    form: Form
    codes: NDArray[np.int64]
    values: list[str]
    numbers: NDArray[np.float64] | None
    num_estimated: int
    is_stored_as_text: bool = False
    num_unreadable: int = 0
    num_too_large: int = 0
    missing_words: tuple[str, ...] = ()
    comma_number: str = ""
    decimal: str = "."

    @property
    def num_rows(self) -> int:
        """Rows of the sample."""
        return len(self.codes)

    @cached_property
    def num_missing(self) -> int:
        """Rows without a value."""
        return int((self.codes < 0).sum())

    @property
    def num_distinct(self) -> int:
        """Distinct values of the sample."""
        return len(self.values)

    @cached_property
    def is_integer(self) -> bool:
        """Whether all values are whole numbers."""
        if self.numbers is None:
            return False
        present = self.numbers[~np.isnan(self.numbers)]
        return bool((present == np.round(present)).all())

    @cached_property
    def has_leading_zeros(self) -> bool:
        """Whether whole numbers are written as codes are, such as 01234."""
        return self.form == "number" and any(_LEADING_ZERO.match(value) for value in self.values)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words of the name, in lower case: `FlightNo` has flight and no."""
        spaced = re.sub(r"([a-z0-9])([A-Z])|([A-Z]+)([A-Z][a-z])", r"\1\3 \2\4", self.name)
        return tuple(word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word)


def profile_of(
    name: str, column: Column, total_rows: int, is_from_text: bool = False, decimal: str = "."
) -> Profile:
    """The profile of a column.

    Args:
        name: Its name.
        column: A pyarrow array.
        total_rows: Rows of all files.
        is_from_text: Whether it is text only because all of its file is.
        decimal: What separates the decimals of numbers in texts.
    """
    import pyarrow as pa

    from outsize.data.encoding.column_values import to_numbers, to_text

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        form: Form = "other" if _has_fractions(column) else "list"
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        form = "time"
    elif any(check(kind) for check in _number_types()):
        form = "number"
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        form = "text"
    else:
        form = "other"
    if form == "other":
        return Profile(name, "other", np.full(len(column), -1), [], None, 0)
    try:
        text, unreadable = to_text(column)
    except pa.ArrowException:
        return Profile(name, "other", np.full(len(column), -1), [], None, 0)
    values = text.values.to_pylist()
    codes, values = _used(text.codes, values)
    numbers, num_too_large = None, 0
    if form in ("number", "time"):
        numbers = to_numbers(column)[0]
        codes = np.where(np.isnan(numbers), -1, codes)
        is_too_large = (np.abs(numbers) > _LARGEST) & (form == "number")
        numbers = np.where(is_too_large, np.nan, numbers)
        num_too_large = int(is_too_large.sum())
    found = Profile(name, form, codes, values, numbers, 0, num_too_large=num_too_large)
    if form == "text":
        found = _read_text(name, codes, values, decimal)
    estimated = estimate_distinct(found.codes, total_rows)
    return replace(
        found,
        num_estimated=estimated,
        is_stored_as_text=form == "text" and not is_from_text,
        num_unreadable=0 if unreadable is None else int(unreadable.sum()),
    )


def _number_types() -> tuple[Any, ...]:
    from pyarrow import types

    return (
        types.is_integer, types.is_floating, types.is_boolean, types.is_decimal,
        types.is_duration, types.is_time,
    )  # fmt: skip


def _has_fractions(lists: Any) -> bool:
    """Whether lists hold numbers that are no ids, such as vectors."""
    import pyarrow as pa
    import pyarrow.compute as pc

    members = lists.flatten()
    if not pa.types.is_floating(members.type):
        return bool(pa.types.is_nested(members.type) or pa.types.is_decimal(members.type))
    members = members.cast(pa.float64())
    return bool(pc.any(pc.not_equal(members, pc.round(members))).as_py())


def estimate_distinct(codes: NDArray[np.int64], total_rows: int) -> int:
    """Distinct values among all rows, from those in a sample and the number that occur once.

    The estimator of Haas and Stokes that databases use: d / (1 − (1 − q) f₁ / n), where d values
    and f₁ single ones were seen in n rows, which are a share q of all.
    """
    counts = np.bincount(codes[codes >= 0])
    counts = counts[counts > 0]
    num_rows = len(codes)
    if not len(counts):
        return 0
    present = int(counts.sum())
    share = min(1.0, num_rows / max(1, total_rows))
    single = int((counts == 1).sum())
    estimated = len(counts) / max(1 - (1 - share) * single / present, share)
    return max(len(counts), min(round(estimated), round(present / share)))


def _used(codes: NDArray[np.int64], values: list[str]) -> tuple[NDArray[np.int64], list[str]]:
    """The values that occur, numbered from 0."""
    found, renumbered = np.unique(codes, return_inverse=True)
    shift = int(found[0] < 0) if len(found) else 0
    return renumbered - shift, [values[i] for i in found[shift:]]


def _read_text(
    name: str, codes: NDArray[np.int64], values: list[str], decimal: str = "."
) -> Profile:
    """The profile of texts: as numbers if all are but for words for missing values."""
    parsed = list(map(_comma_number_in if decimal == "," else number_in, values))
    others = [value for value, number in zip(values, parsed, strict=True) if number is None]
    if len(others) < len(values) and _are_missing(others, len(values)):
        numbers = np.array([np.nan if number is None else number for number in parsed] + [np.nan])
        by_row = numbers[codes]
        words = tuple(others)
        left = np.where(np.isnan(by_row), -1, codes)
        return Profile(
            name, "number", *_used(left, values), by_row, 0, missing_words=words, decimal=decimal
        )
    return Profile(name, "text", codes, values, None, 0, comma_number=_comma_number(values, parsed))


def _comma_number(values: list[str], parsed: list[float | None]) -> str:
    """A number that training cannot read, if most values, or all that are not read, are such."""
    looked_at = list(zip(values[:_LOOKED_AT], parsed[:_LOOKED_AT], strict=True))
    unread = [text for text, number in looked_at if number is None]
    found = [
        text for text, _ in looked_at if _COMMA_NUMBER.fullmatch(text) or _WITH_UNIT.fullmatch(text)
    ]
    is_usual = len(found) > 0.5 * len(looked_at) and bool(unread)
    return found[0] if found and (is_usual or set(unread) <= set(found)) else ""


def has_decimal_commas(profiles: Mapping[str, Profile]) -> bool:
    """Whether some numbers have a decimal comma for sure, and none a decimal point.

    A number such as 1,234 may be either. Columns of other texts do not count.
    """
    is_sure = False
    for profile in profiles.values():
        if profile.form not in ("text", "number") or profile.is_stored_as_text:
            continue
        values = profile.values[:: 1 + len(profile.values) // _LOOKED_AT]
        if profile.comma_number:
            is_sure |= any(map(_SURELY_COMMA.fullmatch, values))
        elif profile.form == "text":
            continue
        if any(map(_SURELY_POINT.fullmatch, values)):
            return False
    return is_sure


def number_in(text: str) -> float | None:
    """The number that a text is, as training would read it; `None` if it is none."""
    try:
        number = float(text) if "_" not in text else None
    except ValueError:
        return None
    return None if number is None or np.isinf(number) else number


def _comma_number_in(text: str) -> float | None:
    """The same for a number with a decimal comma, or none."""
    if _WITH_DECIMAL_COMMA.fullmatch(text):
        return number_in(re.sub(r"[. ]", "", text).replace(",", "."))
    return number_in(text) if "." not in text else None


def _are_missing(others: list[str], num_values: int) -> bool:
    """Whether the texts among numbers only say that there is none."""
    unknown = [word for word in others if word.strip().lower() not in _MISSING_WORDS]
    return not unknown or (
        len(unknown) == 1 and num_values > 20 and not any(map(str.isdigit, unknown[0]))
    )


def shown_values(profile: Profile, most: int = 3) -> str:
    """A few of the values, for messages."""
    return ", ".join(repr(value)[:24] for value in profile.values[:most])
