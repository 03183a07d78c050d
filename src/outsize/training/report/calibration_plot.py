"""The calibration plot of a click model: predicted against observed rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from outsize.reporting.colors import MARK
from outsize.reporting.page import figure_and_axes, svg_of
from outsize.reporting.plots import HEIGHT, WIDTH, legend_below, set_margins
from outsize.training.report.history import RunHistory

_Z = 1.96  # of a normal distribution, 95%
_LOG_RATIO = 30


def calibrations_of(history: RunHistory) -> dict[str, Mapping[str, Any]]:
    """For validation and test, the line at the best step that has predicted and observed rates."""
    found = {}
    for split in ("validation", "test"):
        lines = [line for line in history.of(split) if line.get("calibration_count")]
        at_best = [line for line in lines if line["step"] == history.best_step]
        if lines:
            found[split] = (at_best or lines)[-1]
    return found


def calibration_svg(series: Mapping[str, Mapping[str, Any]], colors: Mapping[str, str]) -> str:
    """Observed rates by predicted rate, with 95% intervals; calibrated is the diagonal.

    Args:
        series: Lines with `calibration_…` by name.
        colors: The colour of each name.
    """
    figure, axes = figure_and_axes(WIDTH, HEIGHT, measures_text=False)
    values: list[float] = []
    for name, line in series.items():
        predicted, observed, counts = (
            line[f"calibration_{part}"] for part in ("predicted", "observed", "count")
        )
        ranges = [wilson(rate, n) for rate, n in zip(observed, counts, strict=False)]
        size = min(len(predicted), len(ranges))
        axes.errorbar(
            predicted[:size],
            observed[:size],
            yerr=[
                [max(o - low, 0.0) for o, (low, _) in zip(observed, ranges, strict=False)],
                [max(high - o, 0.0) for o, (_, high) in zip(observed, ranges, strict=False)],
            ],
            color=colors[name], marker="o", ms=3.5, lw=1.2, elinewidth=0.8, capsize=2, label=name,
            ls="" if size == 1 else "-",
        )  # fmt: skip
        values += [*predicted, *observed]
    positive = [value for value in values if value > 0]
    if positive and len(positive) == len(values) and max(values) > _LOG_RATIO * min(values):
        axes.set_xscale("log")
        axes.set_yscale("log")
        ends = (min(values) / 1.3, min(max(values) * 1.3, 1.0))
    else:
        ends = (0.0, min(max(values, default=1.0) * 1.08, 1.0) or 1.0)
    axes.plot(ends, ends, color=MARK, ls="--", lw=1.0, label="calibrated", zorder=1)
    axes.set_xlim(ends)
    axes.set_xlabel("predicted rate")
    axes.set_ylabel("observed rate")
    set_margins(figure, legend_below(figure, axes))
    return svg_of(figure)


def calibration_note(lines: Sequence[Mapping[str, Any]]) -> str:
    """What a point of the plot is."""
    groups = max((len(line["calibration_count"]) for line in lines), default=0)
    return (
        f"Examples in order of their prediction, in {groups} groups of about equal size; bars are "
        "95% intervals of the observed rate. Below the diagonal the model promises too much."
    )


def wilson(rate: float, count: int) -> tuple[float, float]:
    """The 95% interval of a rate that was observed in `count` examples (Wilson's score)."""
    n = max(count, 1)
    middle = (rate + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(rate * (1 - rate) / n + _Z**2 / (4 * n * n))
    return max(middle - half, 0.0), min(middle + half, 1.0)
