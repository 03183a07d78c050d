"""What a user should know before training on a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from outsize.suggest.labels import Label
from outsize.suggest.profile import Profile
from outsize.suggest.roles import Decision
from outsize.suggestions import few

_FEW_OF_A_LABEL = 20
_MANY_COPIES, _TELLS_ROWS_APART = 0.05, 0.95


def notes_on(label: Label, decided: Mapping[str, Decision]) -> list[str]:
    """Notes on a label that is rare and on columns that cannot be read."""
    notes = []
    unreadable = [name for name, each in decided.items() if each.kind == "not UTF-8"]
    if unreadable:
        notes.append(
            f"{few(unreadable)}: left out, for the file is not UTF-8; convert it, such as with "
            "iconv -f latin1 -t utf-8"
        )
    counts = {value: int((label.labels == value).sum()) for value in (0, 1)}
    rarer = min(counts, key=lambda value: counts[value])
    if counts[rarer] < _FEW_OF_A_LABEL:
        have = "row has" if counts[rarer] == 1 else "rows have"
        notes.append(
            f"only {counts[rarer]:,} {have} label {rarer}, of {len(label.labels):,} looked at: "
            "metrics will say little"
        )
    return notes


def note_on_copies(profiles: Mapping[str, Profile]) -> list[str]:
    """A note if rows occur more than once, though a column tells others apart.

    Where columns have few values, rows are equal by chance, and that is no fault.
    """
    known = [profile for profile in profiles.values() if profile.form != "other"]
    if not known:
        return []
    keys = np.zeros(known[0].num_rows, np.uint64)
    for profile in known:
        keys = (keys ^ profile.codes.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    num_distinct = len(np.unique(keys))
    share = 1 - num_distinct / len(keys)
    most = max(profile.num_distinct for profile in known)
    if share < _MANY_COPIES or most < _TELLS_ROWS_APART * num_distinct:
        return []
    return [
        f"{share:.0%} of rows are copies of others: with rows held out at random, copies of "
        "training rows are in the test, and metrics are too good; remove them"
    ]


def rows_to_skip(
    bad_share: float, missing_share: float, missing: str
) -> tuple[dict[str, Any], list[str]]:
    """The setting that lets training skip as many rows as in the sample and more, and a note.

    Args:
        bad_share: Share of rows with another number of values.
        missing_share: Share of rows without a value that they need.
        missing: What these have, such as "no label".
    """
    parts = [(bad_share, "another number of values"), (missing_share, missing)]
    facts = [f"{share:.2%} of rows have {what}" for share, what in parts if share]
    if not facts:
        return {}, []
    most = min(1.0, max(0.001, float(f"{2 * (bad_share + missing_share):.1g}")))
    return {"max_bad_rows": most}, [f"{' and '.join(facts)}: they are skipped"]
