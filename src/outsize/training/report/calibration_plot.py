"""The calibration plot of a click model: predicted against observed rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from outsize.reporting.colors import MARK
from outsize.reporting.line_plot import Plot, Series, draw
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
    drawn: list[Series] = []
    for name, line in series.items():
        predicted, observed, counts = (
            line[f"calibration_{part}"] for part in ("predicted", "observed", "count")
        )
        ranges = [wilson(rate, n) for rate, n in zip(observed, counts, strict=False)]
        points = list(zip(predicted, observed, strict=False))
        drawn.append(Series(points, colors[name], name, markers=True, ranges=ranges))
    values = [value for each in drawn for point in each.points for value in point]
    is_log = bool(values) and max(values) > _LOG_RATIO * min(values) > 0
    ends = [min(values, default=0.0) if is_log else 0.0, max(values, default=1.0)]
    drawn.append(Series([(end, end) for end in ends], MARK, "calibrated", dashed=True, thin=True))
    return draw(
        Plot(
            drawn,
            "predicted rate",
            "observed rate",
            from_zero=not is_log,
            log_x=is_log,
            log_y=is_log,
        )
    )


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
