"""Loop callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Callbacks:
    """Loop callbacks; the base class does nothing."""

    def log(self, line: Mapping[str, Any]) -> None:
        """Called with every line of metrics, which has "step" and "split"."""

    def log_facts(self) -> dict[str, Any] | None:
        """What a checkpoint records of the log so far; `None` if there is no log."""
        return None

    def advance(self, step: int) -> None:
        """Called after every step."""

    def say(self, text: str) -> None:
        """Called with a message for the user."""
