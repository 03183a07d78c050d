"""Ids and classes that a model does not know, and that are left out of what it is asked for."""

from __future__ import annotations

import warnings
from typing import Any


class LeftOut:
    """Counts what is left out, and remembers the first.

    Args:
        fault: What is wrong with it, as in "3 of the neighbours are of no node of the graph".
        outcome: What becomes of it.
    """

    def __init__(self, fault: str, outcome: str = "they were left out") -> None:
        self._fault, self._outcome = fault, outcome
        self.count, self.example = 0, ""

    def add(self, values: Any) -> None:
        """Count values, a pyarrow array."""
        self.count += len(values)
        if len(values) and not self.example:
            self.example = shown_value(values[0])

    def note(self) -> str:
        """One line on what was left out; empty where nothing was."""
        if not self.count:
            return ""
        return f"{self.count:,} {self._fault}, such as {self.example}; {self._outcome}"

    def warn(self, stacklevel: int) -> None:
        """Warn of what was left out, if anything was."""
        if self.count:
            warnings.warn(self.note(), stacklevel=stacklevel + 1)


def excluded_ids() -> LeftOut:
    """Ids to exclude that are of no item of a model."""
    return LeftOut(
        "of the ids to exclude are of no item of this model", "they could not be found anyway"
    )


def shown_value(value: Any) -> str:
    """A value of a pyarrow array, for a message."""
    plain = value.as_py()
    if isinstance(plain, bytes):
        plain = plain.decode(errors="replace")
    return f"{plain!r:.60}"
