"""One trial: what it is given, and the ways in which it ends."""

from __future__ import annotations

import fcntl
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SURVIVED, REFUSED, SKIPPED, FAILED = "survived", "refused", "skipped", "failed"
OUTCOMES = (SURVIVED, REFUSED, SKIPPED, FAILED)


class TrialFailed(Exception):
    """The library broke a promise; the text says which."""


class TrialSkipped(Exception):
    """The trial cannot run on this machine; the text says why."""


@dataclass(frozen=True)
class Trial:
    """What a trial is given.

    Attributes:
        kind: A key of `KINDS`.
        seed: The seed of the campaign.
        number: The index of the trial in its kind.
        folder: An empty folder for its files.
        shared: A folder in which trials share what is made once.
    """

    kind: str
    seed: int
    number: int
    folder: Path
    shared: Path

    @cached_property
    def draw(self) -> random.Random:
        """Every choice of the trial, a function of its kind, seed and number."""
        return random.Random(f"{self.seed} {self.kind} {self.number}")

    def base(self, name: str, make: Callable[[Path], None]) -> Path:
        """A folder that trials share; the first one that needs it makes it.

        Args:
            name: The name of the folder.
            make: Called with an empty folder to fill.
        """
        final = self.shared / name
        with (self.shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not final.exists():
                partial = final.with_name(f"{name}.making")
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                make(partial)
                partial.rename(final)
        return final


@dataclass(frozen=True)
class Ended:
    """How a trial ended.

    Attributes:
        kind: A key of `KINDS`.
        number: The index of the trial in its kind.
        outcome: One of `OUTCOMES`.
        what: What was tried.
        words: Why it failed or was skipped, or the line in which it was refused.
        elapsed_s: Seconds it took.
    """

    kind: str
    number: int
    outcome: str
    what: str
    words: str
    elapsed_s: float


def require(holds: bool, words: str) -> None:
    """Fail the trial if a promise does not hold."""
    if not holds:
        raise TrialFailed(words)
