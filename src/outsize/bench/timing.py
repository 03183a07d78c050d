"""Timing on a noisy machine: variants take turns in one process; medians and spreads are kept."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """Seconds per call over several rounds.

    Attributes:
        median_s: Median over rounds.
        p10_s: 10th percentile, the fast end.
        p90_s: 90th percentile, the slow end.
        rounds: Number of rounds.
    """

    median_s: float
    p10_s: float
    p90_s: float
    rounds: int

    def in_ms(self) -> dict[str, float]:
        """Median and percentiles in milliseconds, and the number of rounds, for results."""
        return {
            "median_ms": self.median_s * 1e3,
            "p10_ms": self.p10_s * 1e3,
            "p90_ms": self.p90_s * 1e3,
            "rounds": self.rounds,
        }


def time_in_turns(
    variants: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    calls: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time several variants; each round runs every one of them in turn.

    Args:
        variants: Name → what to call.
        rounds: Turns per variant.
        calls: Calls per turn; the time of a round is their mean.
        warmup: Untimed calls of each variant before the first round.
        clock: Seconds; `time.process_time` leaves out what other processes take.
    """
    for run in variants.values():
        for _ in range(warmup):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            _wait_for_device()
            started = clock()
            for _ in range(calls):
                run()
            _wait_for_device()
            seconds[name].append((clock() - started) / calls)
    return {name: summarize(values) for name, values in seconds.items()}


def cell(found: Mapping[str, float] | None) -> str:
    """Milliseconds as `Timing.in_ms` gives them, for a table: median (p10 to p90), or a dash."""
    if found is None:
        return "–"
    return "{median_ms:.2f} ({p10_ms:.2f} to {p90_ms:.2f})".format(**found)


def extra_bytes(call: Callable[[], object]) -> int:
    """The GPU memory that a call takes at most, besides what is there before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def summarize(values: list[float]) -> Timing:
    """The median and the percentiles of seconds.

    Args:
        values: Seconds per call, one number per round.
    """
    ordered = sorted(values)
    last = len(ordered) - 1
    return Timing(
        statistics.median(ordered),
        ordered[round(last * 0.1)],
        ordered[round(last * 0.9)],
        len(values),
    )


def _wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
