"""Whom a loop tells what happens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Watcher:
    """Whom the loop tells what happens; this one takes no notice."""

    def log(self, line: Mapping[str, Any]) -> None:
        """A line of metrics, with "step" and "split"."""

    def log_facts(self) -> dict[str, Any] | None:
        """What a checkpoint records of the log so far; `None` where no log is written."""
        return None

    def advance(self, step: int) -> None:
        """A step is done."""

    def say(self, text: str) -> None:
        """Something a reader should know."""
