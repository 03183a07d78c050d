"""Which columns are times, and how they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.suggest.profile import Profile

_SPOKEN = frozenset(
    ["timestamp", "time", "ts", "date", "datetime", "day", "at", "created", "when", "epoch", "hour"]
)
_DATES = ("%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%d-%b-%Y",
          "%d %b %Y", "%b %d, %Y", "%d-%b-%y", "%m/%d/%y", "%d/%m/%y")  # fmt: skip
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
FORMATS = tuple(date + clock for date in _DATES for clock in _CLOCKS)
_PACKED = (
    ("%Y%m%d", 8),
    ("%y%m%d%H", 8),
    ("%Y%m%d%H", 10),
    ("%Y%m%d%H%M", 12),
    ("%Y%m%d%H%M%S", 14),
)
_LOOKED_AT = 2_000
_MOST_WRONG = 0.0005
_DAYS_PER_YEAR = 366


@dataclass(frozen=True)
class Times:
    """The times of a column.

    Attributes:
        numbers: For each row of the sample, numbers in the order of time; NaN if missing.
        format: How texts are read; empty for ISO 8601, and where they are numbers.
        is_ambiguous: Whether day and month could be exchanged.
    """

    numbers: NDArray[np.float64]
    format: str = ""
    is_ambiguous: bool = False


def is_named_as_time(profile: Profile) -> bool:
    """Whether times often have this name."""
    return bool(_SPOKEN & set(profile.words))


def times_in(profile: Profile, asked: bool = False) -> Times | None:
    """The times that a column holds; `None` if it holds none.

    Args:
        profile: The column.
        asked: Whether a user says that it is a time; then any numbers are.
    """
    if profile.form == "time":
        return Times(_numbers(profile))
    if profile.form == "number":
        is_time = asked or (not profile.is_stored_as_text and _are_counted(profile))
        return Times(_numbers(profile)) if is_time or _are_packed(profile) else None
    return _times_in_text(profile) if profile.form == "text" else None


def _numbers(profile: Profile) -> NDArray[np.float64]:
    assert profile.numbers is not None
    return profile.numbers


def _are_counted(profile: Profile) -> bool:
    """Whether numbers count seconds since 1970, or days, and the name says so."""
    if not _SPOKEN & set(profile.words):
        return False
    numbers = _numbers(profile)
    present = numbers[~np.isnan(numbers)]
    if not len(present):
        return False
    low, high = float(present.min()), float(present.max())
    if any(4e8 * unit <= low and high <= 4e9 * unit for unit in (1, 1e3, 1e6, 1e9)):
        return True
    spoken_of_days = {"day", "date"} & set(profile.words)
    return (
        bool(spoken_of_days)
        and profile.is_integer
        and profile.num_estimated > _DAYS_PER_YEAR
        and high < 1e5
    )


def _are_packed(profile: Profile) -> bool:
    """Whether whole numbers are dates such as 20240131, and the name says so."""
    if not profile.is_integer or not _SPOKEN & set(profile.words):
        return False
    texts = [value.removesuffix(".0") for value in profile.values[:_LOOKED_AT]]
    return any(
        all(len(text) == length and _read(text, form) for text in texts) for form, length in _PACKED
    )


def _times_in_text(profile: Profile) -> Times | None:
    looked_at = [value for value in _spread(profile.values) if value.strip()]
    if not looked_at or not any(map(str.isdigit, looked_at[0])):
        return None
    for form in ("", *FORMATS):
        if not _reads_nearly_all(looked_at, form):
            continue
        parsed = [_read(value, form) for value in profile.values]
        numbers = np.array([np.nan if time is None else time for time in parsed] + [np.nan])
        other = form.replace("%m", "%?").replace("%d", "%m").replace("%?", "%d")
        is_ambiguous = (
            other in FORMATS
            and other != form
            and all(_read(value, other) is not None for value in looked_at)
        )
        return Times(numbers[profile.codes], form, is_ambiguous)
    return None


def _reads_nearly_all(texts: Sequence[str], form: str) -> bool:
    """Whether a format reads all texts but a few; it stops at the first that is too many."""
    wrong = 0
    for text in texts:
        wrong += _read(text, form) is None
        if wrong > _MOST_WRONG * len(texts):
            return False
    return True


def _spread(values: Sequence[str]) -> list[str]:
    step = 1 + len(values) // _LOOKED_AT
    return list(values[::step])


def _read(text: str, form: str) -> float | None:
    try:
        time = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
    except ValueError:
        return None
    return (time.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()


def rank_correlation(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Spearman's correlation of two columns, over rows that have both."""
    known = ~(np.isnan(one) | np.isnan(other))
    if known.sum() < 10:
        return 0.0
    ranks = [_ranks(column[known]) for column in (one, other)]
    if min(rank.std() for rank in ranks) == 0:
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks, the same for equal numbers."""
    _, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - counts / 2
    ranks: NDArray[np.float64] = middle[places]
    return ranks
