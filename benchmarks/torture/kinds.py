"""The kinds of trial, by name."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.torture import (
    damage,
    full_disk,
    histories,
    kills,
    mutations,
    negative_histories,
)
from benchmarks.torture.trial import Trial

RunTrial = Callable[[Trial, Callable[[str], None]], tuple[str, str]]
"""Takes a trial and a function that is told what is tried; returns outcome and words."""

PER_TURN = {"kills": 1, "damage": 3, "full-disk": 1, "mutations": 5, "histories": 2,
            "negative-histories": 2}  # fmt: skip
"""Trials of each kind in a turn: more of those that take less time."""

KINDS: dict[str, RunTrial] = {
    "kills": kills.run,
    "damage": damage.run,
    "full-disk": full_disk.run,
    "mutations": mutations.run,
    "histories": histories.run,
    "negative-histories": negative_histories.run,
}
