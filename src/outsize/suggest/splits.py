"""How rows are held out: by a column of the file, by time, or at random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.errors import DataError
from outsize.suggest.profile import Profile
from outsize.suggest.times import Times, times_in
from outsize.suggestions import closest, few

SPLIT_NAMES = frozenset(["split", "fold", "subset", "partition", "set", "part"])
SPLIT_WORDS = {
    "train": ("train", "training", "tr", "0"),
    "validation": ("validation", "valid", "val", "dev", "1"),
    "test": ("test", "testing", "te", "holdout", "2"),
}
_LEAST_SHARE, _MOST_SHARE = 0.02, 0.35
_MAX_MISSING = 0.05


@dataclass(frozen=True, eq=False)
class Split:
    """How rows are held out.

    Attributes:
        section: The section `[data.split]`.
        column: The column it needs; empty for none.
        times: The times by which rows are cut, if they are.
        reason: Why.
        other_times: Further columns of times.
    """

    section: dict[str, Any]
    column: str = ""
    times: NDArray[np.float64] | None = None
    reason: str = ""
    other_times: dict[str, Times] = field(default_factory=dict)


def find_split(
    profiles: Mapping[str, Profile], labels: NDArray[np.float64] | None, asked: str | None
) -> Split:
    """How to hold out rows.

    Args:
        profiles: The columns that may say it.
        labels: 0 or 1 for each row of the sample, if there is a label.
        asked: The column of times, if a user names one.
    """
    if asked is None:
        for name, profile in profiles.items():
            if section := _column_split(profile):
                return Split(section, name, None, f"rows are marked in column {name!r}")
    elif asked not in profiles:
        raise DataError(
            f"--time {asked}: there is no such column; there are {few(profiles, asked)}."
            f"{closest(asked, profiles)}"
        )
    found = {
        name: times
        for name, profile in profiles.items()
        if (times := times_in(profile, asked=name == asked)) is not None
    }
    if asked is not None and asked not in found:
        raise DataError(
            f"--time {asked}: its values are neither numbers nor dates that can be read"
        )
    why_not = ""
    for name in (asked,) if asked is not None else sorted(found, key=lambda n: _rank(profiles[n])):
        reason = _why_not(found[name].numbers, labels)
        if not reason:
            return _by_time(name, found)
        if asked is not None:
            raise DataError(f"--time {name}: {reason}")
        why_not = why_not or f"; not by {name!r}, for {reason}"
    return Split({"kind": "hash"}, "", None, f"at random{why_not}", found)


def _by_time(name: str, found: dict[str, Times]) -> Split:
    times = found[name]
    section = {"kind": "time", "column": name, "validation": 0.1, "test": 0.1}
    if times.format:
        section["format"] = times.format
    reason = f"the last tenth by {name!r} to test, the tenth before it to validate"
    if times.is_ambiguous:
        reason += f"; dates are read as {times.format!r}"
    others = {other: value for other, value in found.items() if other != name}
    return Split(section, name, times.numbers, reason, others)


def _rank(profile: Profile) -> tuple[bool, bool]:
    """Columns of events before others, in the order of the file."""
    spoken = {"timestamp", "time", "datetime", "ts"} & set(profile.words)
    return profile.num_missing > _MAX_MISSING * profile.num_rows, not spoken


def _column_split(profile: Profile) -> dict[str, Any] | None:
    """The section for a column that marks rows of all three parts."""
    if not SPLIT_NAMES & set(profile.words) or not 3 <= profile.num_distinct <= 4:
        return None
    counts = np.bincount(profile.codes[profile.codes >= 0], minlength=len(profile.values))
    chosen = {
        part: [value for value in profile.values if value.strip().lower() in words]
        for part, words in SPLIT_WORDS.items()
    }
    if any(len(values) != 1 for values in chosen.values()):
        return None
    if profile.values[int(np.argmax(counts))] != chosen["train"][0]:
        return None
    return {"kind": "column", "column": profile.name, **chosen}


def _why_not(times: NDArray[np.float64], labels: NDArray[np.float64] | None) -> str:
    """Why rows cannot be cut by these times; empty if they can."""
    if np.isnan(times).mean() > _MAX_MISSING:
        return f"{np.isnan(times).mean():.0%} of its rows have no time"
    known = ~np.isnan(times)
    order = np.sort(times[known])
    cuts = [order[min(int(len(order) * share), len(order) - 1)] for share in (0.8, 0.9)]
    parts = [times < cuts[0], (times >= cuts[0]) & (times < cuts[1]), times >= cuts[1]]
    shares = [part.mean() for part in parts]
    if min(shares) < _LEAST_SHARE or max(shares[1:]) > _MOST_SHARE:
        return "too few different times"
    if labels is not None and any(len(np.unique(labels[p & ~np.isnan(labels)])) < 2 for p in parts):
        return "a part of the time has rows of one label only"
    return ""
