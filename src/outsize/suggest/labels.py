"""The label: which column, and which of its values is 1."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.errors import DataError
from outsize.suggest.profile import Profile, number_in, shown_values
from outsize.suggestions import closest, few

_NAMES = frozenset(
    ["label", "target", "click", "clicked", "isclick", "isclicked", "y", "class", "outcome",
     "response", "converted", "conversion", "isconversion", "fraud", "isfraud", "churn", "churned",
     "survived", "purchased", "purchase", "bought", "success", "default", "defaulted", "liked",
     "labels", "islabel", "responded", "subscribed", "approved"]
)  # fmt: skip
_OF_NOTHING_ELSE = frozenset(["label", "labels", "islabel", "target", "y"])
_WORDS = frozenset(
    ["label", "target", "click", "clicked", "converted", "conversion", "fraud", "churn", "churned",
     "survived", "purchased", "bought", "default", "defaulted", "subscribed", "exited", "attrition",
     "canceled", "cancelled", "renewed", "readmitted", "delinquent"]
)  # fmt: skip
_POSITIVE = ("1", "true", "t", "yes", "y", "positive", "pos", "+", "click", "clicked", "success",
             "good", ">50k", "won", "win", "spam", "fraud", "bad", "ja", "oui", "si", "sí",
             "sim", "tak")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Label:
    """The label of a run.

    Attributes:
        column: Its column.
        labels: For each row of the sample 0 or 1, NaN if missing.
        rule: Further keys of `[data]`.
        reason: Why this column, and which value is 1.
    """

    column: str
    labels: NDArray[np.float64]
    rule: dict[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def missing_share(self) -> float:
        """Share of rows without a label."""
        return float(np.isnan(self.labels).mean())


def is_binary(profile: Profile) -> bool:
    """Whether a column has exactly two values."""
    return profile.form in ("number", "text") and profile.num_distinct == 2


def find_label(
    profiles: Mapping[str, Profile], asked: str | None, positive: str | None
) -> Label | None:
    """The label; `None` if there is none, an error if several columns may be it.

    Args:
        profiles: The columns that may be it.
        asked: Its name, if a user gives one.
        positive: The value that is 1, or the least number that is, if a user says so.
    """
    if asked is not None:
        if asked not in profiles:
            raise DataError(
                f"--label {asked}: there is no such column; there are {few(profiles, asked)}."
                f"{closest(asked, profiles)}"
            )
        return _label_of(profiles[asked], positive, "given by --label")
    binary = [name for name, profile in profiles.items() if is_binary(profile)]
    named = [name for name in profiles if has_label_name(name)]
    both = [name for name in binary if name in named]
    if len(both) == 1:
        return _label_of(profiles[both[0]], positive, "named so, two values")
    plain = [name for name in both if _bare(name) in _OF_NOTHING_ELSE]
    if len(both) > 1 and len(plain) == 1:
        return _label_of(profiles[plain[0]], positive, "named so, two values")
    if len(both) > 1:
        raise DataError(
            f"several columns may be the label, {few(both)}: say which, such as --label "
            f"{shlex.quote(both[-1])}"
        )
    if len(named) == 1 and profiles[named[0]].num_distinct != 0:
        return _label_of(profiles[named[0]], positive, "named so")  # or say why not
    if len(named) > 1 and len(binary) != 1:
        raise DataError(
            f"several columns may be the label, {few(named)}, and none of them has two values: say "
            "which, --label COLUMN, and which values are 1, --positive VALUE"
        )
    if len(binary) == 1:
        return _label_of(profiles[binary[0]], positive, "the only column with two values")
    worded = [name for name in binary if _WORDS & set(profiles[name].words)]
    if len(worded) == 1:
        return _label_of(profiles[worded[0]], positive, "by a word of its name, two values")
    if binary:
        raise DataError(
            f"no column is named label, click or target, and {len(binary)} have two values, "
            f"{few(binary)}: say which is the label, such as --label {shlex.quote(binary[-1])}"
        )
    return None


def has_label_name(name: str) -> bool:
    """Whether labels often have this name, however it is written."""
    return _bare(name) in _NAMES


def _bare(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _label_of(profile: Profile, positive: str | None, reason: str) -> Label:
    name = profile.name
    if profile.form not in ("number", "text"):
        raise DataError(f"column {name!r} cannot be the label: it holds neither numbers nor text")
    if profile.num_unreadable and (positive is None or positive not in profile.values):
        raise DataError(
            f"column {name!r} cannot be the label: {profile.num_unreadable:,} of its values are "
            "not UTF-8; convert the file, such as with iconv -f latin1 -t utf-8"
        )
    if positive is not None:
        return _with_positive(profile, positive, reason)
    if profile.num_distinct < 2:
        fact = f"only {profile.values[0]!r}" if profile.values else "no value"
        raise DataError(
            f"column {name!r} has {fact} in the {profile.num_rows:,} rows looked at, and a label "
            "has two values: name another column, --label COLUMN"
        )
    if profile.num_distinct > 2:
        least = "4" if profile.form == "number" else profile.values[0]
        raise DataError(
            f"column {name!r} has {profile.num_estimated:,} values ({shown_values(profile)}, …), "
            "and a label has two: name another column, --label COLUMN, or say which are 1, such as "
            f"--label {name} --positive {least}"
        )
    if profile.form == "number":
        numbers = profile.numbers
        assert numbers is not None
        low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
        labels = np.where(np.isnan(numbers), np.nan, numbers == high)
        if low == 0 and high == 1:
            return Label(name, labels, {}, reason)
        return Label(name, labels, {"positive_from": high}, f"{reason}; {high:g} is 1")
    counts = np.bincount(profile.codes[profile.codes >= 0])
    order = [value for value in profile.values if value.strip().lower() in _POSITIVE]
    one = order[0] if len(order) == 1 else profile.values[int(np.argmin(counts))]
    why = f"{reason}; {one!r} is 1" + ("" if len(order) == 1 else ", the rarer value")
    return _by_text(profile, one, why)


def _with_positive(profile: Profile, positive: str, reason: str) -> Label:
    number = number_in(positive)
    if profile.form == "number" and number is not None:
        numbers = profile.numbers
        assert numbers is not None
        labels = np.where(np.isnan(numbers), np.nan, numbers >= number)
        found = Label(
            profile.name, labels, {"positive_from": number}, f"{reason}; 1 from {number:g} on"
        )
    elif positive in profile.values:
        found = _by_text(profile, positive, f"{reason}; {positive!r} is 1")
    else:
        raise DataError(
            f"--positive {positive}: no such value in column {profile.name!r}; there are "
            f"{few(profile.values, positive)}"
        )
    if np.nanmin(found.labels) == np.nanmax(found.labels):
        raise DataError(
            f"--positive {positive}: then all rows looked at have the same label; column "
            f"{profile.name!r} has {few(profile.values, positive)}"
        )
    return found


def _by_text(profile: Profile, positive: str, reason: str) -> Label:
    values = np.array([float(value == positive) for value in profile.values] + [np.nan])
    rule = {"positive_values": [positive]}
    return Label(profile.name, values[profile.codes], rule, reason)
