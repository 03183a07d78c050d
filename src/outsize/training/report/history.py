"""The log of a run as series over steps and over time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]


class RunHistory:
    """The lines of a log, each step once.

    A run that was resumed has one history: where the log goes back to an earlier step, what was
    logged from that step on is replaced.

    Args:
        lines: The lines of `metrics.jsonl`, in order; those of older versions have fewer names.

    Attributes:
        lines: The lines that count.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines: list[Line] = []
        for line in lines:
            while self.lines and self.lines[-1]["step"] > line["step"]:
                self.lines.pop()
            self.lines.append(line)

    def of(self, split: str) -> list[Line]:
        """The lines of a split, one per step, in the order of steps."""
        by_step = {line["step"]: line for line in self.lines if line["split"] == split}
        return list(by_step.values())

    def points(self, metric: str, split: str) -> list[tuple[float, float]]:
        """(step, value) wherever a metric is defined."""
        return [(x["step"], x[metric]) for x in self.of(split) if x.get(metric) is not None]

    def points_by_time(self, metric: str, split: str) -> list[tuple[float, float]]:
        """(seconds of training, value) wherever both are known."""
        lines = self.of(split)
        return [
            (line["train_s"], line[metric])
            for line in lines
            if line.get(metric) is not None and line.get("train_s") is not None
        ]

    @property
    def clock(self) -> list[tuple[float, float]]:
        """(step, seconds of training), both strictly ascending; empty for an older log."""
        clock: list[tuple[float, float]] = []
        for line in self.lines:
            step, seconds = line["step"], line.get("train_s")
            if seconds is None:
                continue
            if not clock or (step > clock[-1][0] and seconds > clock[-1][1]):
                clock.append((step, seconds))
        return clock

    @property
    def train_s(self) -> float | None:
        """Seconds of training up to the last line that has them."""
        return max((x["train_s"] for x in self.lines if x.get("train_s") is not None), default=None)

    @property
    def last_step(self) -> int:
        """The last step of the log."""
        return max((line["step"] for line in self.lines), default=0)

    @property
    def best_step(self) -> int | None:
        """The step of the best validation, at which the test split was last measured."""
        return max((line["step"] for line in self.of("test")), default=None)

    @property
    def epoch_ends(self) -> list[int]:
        """The steps at which epochs ended; each ends with a validation.

        An older log tells only between which training lines that was: the last validation between
        them is taken.
        """
        validations = self.of("validation")
        if any("epochs" in line for line in validations):
            return [x["step"] for x in validations if float(x.get("epochs") or 0.5).is_integer()]
        trained = [line for line in self.of("train") if line.get("epoch") is not None]
        ends = []
        for before, after in itertools.pairwise(trained):
            steps = [x["step"] for x in validations if before["step"] <= x["step"] < after["step"]]
            if after["epoch"] > before["epoch"] and steps:
                ends.append(steps[-1])
        return ends
