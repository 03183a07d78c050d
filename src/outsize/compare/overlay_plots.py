"""Metrics of several runs in one plot: a colour per run, over steps or over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from outsize.compare.named_runs import NamedRun
from outsize.reporting.colors import series_color
from outsize.reporting.line_plot import Plot, Series, draw
from outsize.reporting.quantities import time_unit

Over = Literal["step", "time"]
_NEUTRAL = "#64748b"


def overlay_svg(
    runs: Sequence[NamedRun], metric: str, label: str, over: Over, colors: dict[str, str]
) -> str:
    """A metric of runs: validation as lines, training as dashes, the best validation as a ring.

    Args:
        runs: The runs to draw; those without the metric, or without times, are left out.
        metric: The name of the metric.
        label: Its name on the axis.
        over: What the other axis is.
        colors: The colour of each run by name.
    """
    longest = max((run.history.train_s or 0.0 for run in runs), default=0.0)
    size, unit = time_unit(longest) if over == "time" else (1.0, "")
    has = {s: any(run.history.points(metric, s) for run in runs) for s in ("train", "validation")}
    series = []
    for run in runs:
        read = run.history.points if over == "step" else run.history.points_by_time
        trained, validated = (
            [(x / size, y) for x, y in read(metric, split)] for split in ("train", "validation")
        )
        color = colors[run.name]
        if has["validation"]:
            series.append(Series(trained, color, dashed=True, thin=True))
        else:
            series.append(Series(trained, color, run.name))
        ring = _best_of(run, metric, over, size)
        series.append(Series(validated, color, run.name, markers=True, ring=ring))
    kinds = [Series([(0, 0), (1, 1)], _NEUTRAL, "train", dashed=True)] if all(has.values()) else []
    x_label = "step" if over == "step" else f"{unit} of training"
    return draw(Plot(series, x_label, label, keys=kinds))


def run_colors(runs: Sequence[NamedRun]) -> dict[str, str]:
    """A colour per run, the same in all plots of a page."""
    return {run.name: series_color(number) for number, run in enumerate(runs)}


def has_metric(run: NamedRun, metric: str) -> bool:
    """Whether a run has values of a metric to draw."""
    return any(run.history.points(metric, split) for split in ("train", "validation"))


def has_times(run: NamedRun) -> bool:
    """Whether a run knows its seconds of training."""
    return run.history.train_s is not None


def _best_of(run: NamedRun, metric: str, over: Over, size: float) -> tuple[float, float] | None:
    """The place of the validation whose weights are kept."""
    lines = [x for x in run.history.of("validation") if x["step"] == run.history.best_step]
    if not lines or lines[-1].get(metric) is None:
        return None
    x = lines[-1]["step"] if over == "step" else lines[-1].get("train_s")
    return None if x is None else (x / size, lines[-1][metric])
