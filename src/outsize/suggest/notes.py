"""What a user should know before training on a file."""

from __future__ import annotations

from collections.abc import Mapping

from outsize.suggest.labels import Label
from outsize.suggest.roles import Decision
from outsize.suggestions import few

_FEW_OF_A_LABEL = 20


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
