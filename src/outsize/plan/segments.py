"""From the steps that were simulated to all steps of a run.

A cache is flushed now and then, and has to be filled again. Between two flushes lies a *segment* of
steps, whose costs fall at first and then stay. The first segment, in which the cache is empty, and
at least one later one are simulated; of long ones, the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outsize.training.config import RunConfig

_TAIL = 4  # the last quarter of a simulated segment stands for the steps after it


class Segment(NamedTuple):
    """Steps between two flushes: how many there are, and how many of them are simulated."""

    length: int
    simulated: int


def flush_steps(config: RunConfig, total_steps: int, steps_per_epoch: int) -> list[int]:
    """The steps after which a run flushes its store: validations, checkpoints, the end."""
    found = {total_steps}
    periods = (steps_per_epoch, config.train.validate_every, config.checkpoint.every)
    for every in periods:
        if every is not None:
            found.update(range(every, total_steps + 1, every))
    return sorted(found)


def segments_of(flushes: Sequence[int], most_steps: int) -> list[Segment]:
    """The segments of a run, with at most `most_steps` simulated steps in all.

    Args:
        flushes: The steps after which the store is flushed, ascending; the last one ends the run.
        most_steps: Number of steps to simulate.
    """
    lengths = [int(length) for length in np.diff([0, *flushes])]
    left = most_steps
    segments: list[Segment] = []
    for number, length in enumerate(lengths):
        most = left
        if number == 0 and len(lengths) > 1 and sum(lengths) > most_steps:
            most = max(1, left // 2)  # leave steps for what follows a flush
        segments.append(Segment(length, min(length, most)))
        left -= segments[-1].simulated
    return segments


def run_totals(
    segments: Sequence[Segment], steps: NDArray[np.float64], flushes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Counts over a whole run, `(ranks, columns)`.

    Args:
        segments: The segments of the run.
        steps: Counts of the simulated steps, `(steps, ranks, columns)`.
        flushes: Counts of the flush at the end of each simulated segment, likewise.
    """
    total = np.zeros(steps.shape[1:])
    first, last = 0, 0
    known = steps[:0]
    for number, segment in enumerate(segments):
        if segment.simulated:
            known, last = steps[first : first + segment.simulated], number
            first += segment.simulated
        used = known[: segment.length]
        rest = segment.length - used.shape[0]
        total += used.sum(axis=0) + flushes[last]
        if rest:
            total += rest * known[-max(1, len(known) // _TAIL) :].mean(axis=0)
    return total
