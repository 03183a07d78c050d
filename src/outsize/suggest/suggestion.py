"""From a sample to a run: every decision, and the sections of the run file."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from outsize.data.encoding.recipe import feature_name
from outsize.errors import DataError
from outsize.suggest.labels import Label, find_label, has_label_name, is_binary
from outsize.suggest.leaks import NOTABLE, find_leaks
from outsize.suggest.notes import note_on_copies, notes_on, rows_to_skip
from outsize.suggest.profile import Profile, has_decimal_commas, profile_of
from outsize.suggest.roles import LEFT_OUT, Decision, decide, in_words
from outsize.suggest.sample import Sample
from outsize.suggest.settings import (
    embedding_settings,
    min_count,
    model_settings,
    training_settings,
)
from outsize.suggest.splits import Split, find_split
from outsize.suggest.strength import Strength, strength_of
from outsize.suggest.times import rank_correlation
from outsize.suggestions import closest, few

_FOLLOWS_TIME = 0.95
_FEW_ROWS, _VERY_FEW_ROWS = 200, 60
_NUMBER_KEYS = ("log1p", "standardize", "signed_log")
_LEAST_OF_A_NUMBER = 5
_COLUMN_KEYS = (*_NUMBER_KEYS, "categorical", "multi_valued")


@dataclass(frozen=True)
class Wishes:
    """What a user says about the columns; the rest is decided here.

    Attributes:
        label: The column of the label.
        positive: The value of the label that is 1, or the least number that is.
        drop: Columns to leave out.
        keep: Columns to use even if they seem to know the label, or the time.
        time: The column to split by.
    """

    label: str | None = None
    positive: str | None = None
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    time: str | None = None


@dataclass(frozen=True)
class Suggestion:
    """A run, and why it is so.

    Attributes:
        decisions: One for each column.
        sections: Section of the run file → its keys.
        comments: Section → what it follows from.
        notes: What a user should know before training.
        total_rows: Rows of the data, counted or estimated.
        is_estimate: Whether that is an estimate.
    """

    decisions: list[Decision]
    sections: dict[str, dict[str, Any]]
    comments: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    total_rows: int = 0
    is_estimate: bool = False


def read_profiles(sample: Sample, drop: Collection[str]) -> dict[str, Profile]:
    """The columns of a sample, without those that are dropped."""
    profiles = {
        name: profile_of(name, column, sample.total_rows, sample.is_text)
        for name, column in sample.columns.items()
        if name not in drop
    }
    if not has_decimal_commas(profiles):
        return profiles
    return {
        name: profile_of(name, sample.columns[name], sample.total_rows, sample.is_text, ",")
        for name in profiles
    }


def require_columns(sample: Sample, option: str, names: Collection[str]) -> None:
    """Refuse names of columns that there are not."""
    for name in names:
        if name not in sample.columns:
            raise DataError(
                f"{option} {name}: there is no such column; there are {few(sample.columns, name)}."
                f"{closest(name, sample.columns)}"
            )


def suggest_click_run(
    sample: Sample, profiles: dict[str, Profile], wishes: Wishes, label: Label
) -> Suggestion:
    """A run that predicts a label."""
    others = {name: profile for name, profile in profiles.items() if name != label.column}
    split = find_split(others, label.labels, wishes.time)
    features = {name: p for name, p in others.items() if name != split.column}
    strengths = {
        name: strength_of(profile, label.labels)
        for name, profile in features.items()
        if profile.num_distinct > 1 or profile.num_missing
    }
    decided = {
        name: decide(profile, strengths.get(name), sample.total_rows)
        for name, profile in features.items()
    }
    decided = _leave_out(decided, features, strengths, split, wishes.keep)
    decided = _one_separator(decided)
    decided = _distinct_features(decided)
    decided, notes = _require_ids(decided, features, strengths, sample.repeated)
    notes += notes_on(label, decided)
    if split.section["kind"] == "hash":
        notes += note_on_copies(profiles)
    decisions = _in_order(sample, profiles, decided, label, split)
    suggestion = _sections(sample, decisions, profiles, label, split)
    return replace(suggestion, notes=[*sample.notes, *notes, *suggestion.notes])


def _leave_out(
    decided: dict[str, Decision],
    profiles: dict[str, Profile],
    strengths: dict[str, Strength],
    split: Split,
    keep: Collection[str],
) -> dict[str, Decision]:
    """Leave out what knows the label, what is a time, and what follows the time of the split."""
    result = dict(decided)
    leaks = find_leaks(strengths)
    for name, decision in decided.items():
        if name in keep:
            if decision.use == LEFT_OUT and decision.num_ids == 0:
                result[name] = _brought_back(decision, profiles[name])
            continue
        if name in leaks:
            result[name] = decision.left_out(
                "knows the label", f"{leaks[name]}; --keep {name} uses it"
            )
        elif decision.use == LEFT_OUT:
            continue
        elif name in split.other_times:
            result[name] = decision.left_out("time", "times to come were not trained on")
        elif split.times is not None and profiles[name].numbers is not None:
            followed = rank_correlation(profiles[name].numbers, split.times)  # type: ignore[arg-type]
            if abs(followed) >= _FOLLOWS_TIME:
                reason = f"follows the time of the split (rank correlation {followed:.2f})"
                result[name] = decision.left_out("follows time", reason)
        if result[name].use != LEFT_OUT and (decision.auc or 0) >= NOTABLE:
            reason = f"AUC {decision.auc:.3f} alone: is it known before the outcome?"
            result[name] = replace(decision, reason=f"{decision.reason}; {reason}".lstrip("; "))
    return result


def _brought_back(decision: Decision, profile: Profile) -> Decision:
    """A column that a user wants to use in spite of everything."""
    if profile.form == "other":
        raise DataError(f"--keep {profile.name}: it holds neither numbers nor text")
    return replace(
        decision, kind="category", use="categorical", reason="--keep", num_ids=profile.num_estimated
    )


def _one_separator(decided: dict[str, Decision]) -> dict[str, Decision]:
    """A run file has one separator: columns with another are categories."""
    counted = [d.separator for d in decided.values() if d.use == "multi_valued" and d.separator]
    if len(set(counted)) < 2:
        return decided
    best = max(set(counted), key=counted.count)
    return {
        name: replace(
            decision, kind="category", use="categorical",
            reason=f"several values, but separated by {decision.separator!r}, not {best!r}",
        )
        if decision.use == "multi_valued" and decision.separator not in ("", best)
        else decision
        for name, decision in decided.items()
    }  # fmt: skip


def _distinct_features(decided: dict[str, Decision]) -> dict[str, Decision]:
    """Leave out ids whose feature would have the name of another."""
    seen: dict[str, str] = {}
    result = dict(decided)
    for name, decision in decided.items():
        if decision.use in ("categorical", "multi_valued"):
            other = seen.setdefault(feature_name(name), name)
            if other != name:
                reason = f"its feature would have the name of that of {other!r}: rename it"
                result[name] = decision.left_out("same name", reason)
    return result


def _require_ids(
    decided: dict[str, Decision],
    profiles: dict[str, Profile],
    strengths: dict[str, Strength],
    repeated: Collection[str],
) -> tuple[dict[str, Decision], list[str]]:
    """Use a number as a category too if there is no other: models have a feature of ids.

    It is the number with the fewest values; of several, the one that says least of the label.
    """
    used = {name: d for name, d in decided.items() if d.use != LEFT_OUT}
    if not decided and repeated:
        raise DataError(
            f"there is no column besides the label to learn from: several columns have the name "
            f"{few(repeated)}; give each a name of its own"
        )
    if not decided:
        raise DataError("there is no column besides the label to learn from: name other data")
    if not used:
        reasons = [f"{d.column} ({d.kind})" for d in decided.values()]
        raise DataError(
            f"no column is left to learn from: {few(reasons)}; bring one back with --keep COLUMN"
        )
    if any(decision.num_ids for decision in used.values()):
        return decided, []
    name = min(used, key=lambda name: (profiles[name].num_estimated, strengths[name].best))
    reason = "and categorical: a run needs a column of ids, and this has the fewest values"
    changed = replace(
        decided[name], num_ids=profiles[name].num_estimated, is_category_too=True,
        reason=f"{decided[name].reason}; {reason}".lstrip("; "),
    )  # fmt: skip
    return {**decided, name: changed}, []


def _in_order(
    sample: Sample,
    profiles: dict[str, Profile],
    decided: dict[str, Decision],
    label: Label,
    split: Split,
) -> list[Decision]:
    """All columns in the order of the file."""
    found = [
        Decision(name, "repeated", "", LEFT_OUT, "several columns have this name: rename them")
        if name.strip()
        else Decision(name, "unnamed", "", LEFT_OUT, "the header has no name for it")
        for name in sample.repeated
    ]
    for name in sample.columns:
        if name in decided:
            found.append(decided[name])
        elif name == label.column:
            share = np.nanmean(label.labels)
            values = f"{in_words(profiles[name])}; {share:.{1 if share >= 0.01 else 3}%} are 1"
            found.append(Decision(name, "label", values, "label", label.reason))
        elif name == split.column:
            kind = "time" if split.times is not None else "split"
            found.append(Decision(name, kind, in_words(profiles[name]), "split", split.reason))
        else:
            found.append(Decision(name, "", "", LEFT_OUT, "--drop"))
    return found


def _sections(
    sample: Sample,
    decisions: list[Decision],
    profiles: dict[str, Profile],
    label: Label,
    split: Split,
) -> Suggestion:
    data: dict[str, Any] = {
        "kind": "tabular", "path": list(sample.patterns), **sample.reading,
        "label": label.column, **label.rule,
    }  # fmt: skip
    for key in _COLUMN_KEYS:
        if names := [
            decision.column
            for decision in decisions
            if decision.use == key or (decision.is_category_too and key == "categorical")
        ]:
            data[key] = names
    separators = {d.separator for d in decisions if d.use == "multi_valued"} - {""}
    if "multi_valued" in data:
        data.update({"separator": separators.pop() if separators else "|", "pooling": "mean"})
    used = {d.column for d in decisions if d.use in (*_NUMBER_KEYS, "label", "split")}
    words = {word for name in used for word in profiles[name].missing_words}
    if words:
        data["missing"] = sorted(words)
    if any(profiles[name].decimal == "," for name in used):
        data["decimal"] = ","
    skipped, notes = rows_to_skip(sample.bad_share, label.missing_share, "no label")
    data |= skipped
    section = dict(split.section)
    if section["kind"] == "hash" and sample.total_rows < _FEW_ROWS:
        share = 0.2 if sample.total_rows >= _VERY_FEW_ROWS else 0.25
        section.update({"validation": share, "test": share})
    ids = {
        d.column: d.num_ids
        for d in decisions
        if d.use in ("categorical", "multi_valued") or d.is_category_too
    }
    num_dense = sum(d.use in _NUMBER_KEYS for d in decisions)
    num_train = round(0.8 * sample.total_rows)
    embeddings, why_embeddings = embedding_settings(ids, num_train)
    model, why_model = model_settings(num_dense, len(ids), num_train)
    rare = min_count(sample.total_rows)
    if any(d.is_category_too for d in decisions):
        rare = max(rare, _LEAST_OF_A_NUMBER)
    sections: dict[str, dict[str, Any]] = {"data": data}
    if rare > 1:
        sections["data.vocabulary"] = {"min_count": rare}
    sections |= {"data.split": section, "model": model, **embeddings}
    sections["optimizer"] = {"kind": "adamw", "learning_rate": 0.001}
    sections["train"] = training_settings(num_train)
    comments = {
        "data.vocabulary": "rarer values share one id",
        "data.split": split.reason,
        "model": why_model,
        "embeddings": why_embeddings,
        "train": "training stops early, and the best validation counts",
    }
    return Suggestion(
        decisions, sections, comments, notes, sample.total_rows,
        is_estimate=sample.is_text and not sample.is_whole,
    )  # fmt: skip


def is_named_as_label(profiles: dict[str, Profile]) -> bool:
    """Whether a column of two values has a name that labels have."""
    return any(is_binary(p) and has_label_name(name) for name, p in profiles.items())


def find_label_in(profiles: dict[str, Profile], wishes: Wishes) -> Label | None:
    """The label, looked for among columns that are not a split of the rows."""
    candidates = {
        name: profile
        for name, profile in profiles.items()
        if name == wishes.label or not ({"split", "fold"} & set(profile.words))
    }
    return find_label(candidates, wishes.label, wishes.positive)
