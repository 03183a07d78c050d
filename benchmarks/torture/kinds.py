"""The kinds of trial, by name."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.torture import damage, full_disk, histories, kills, mutations
from benchmarks.torture.trial import Trial

RunTrial = Callable[[Trial, Callable[[str], None]], tuple[str, str]]
"""Takes a trial and a function that is told what is tried; returns outcome and words."""

KINDS: dict[str, RunTrial] = {
    "kills": kills.run,
    "damage": damage.run,
    "full-disk": full_disk.run,
    "mutations": mutations.run,
    "histories": histories.run,
}
