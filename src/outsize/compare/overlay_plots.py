"""Metrics of several runs in one plot: a colour per run, over steps or over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from outsize.compare.named_runs import NamedRun
from outsize.reporting.colors import series_color
from outsize.reporting.page import svg_of
from outsize.reporting.plots import curve_axes, draw_series, finish_curves, time_unit

Over = Literal["step", "time"]
_NEUTRAL = "#64748b"
_SPLITS: dict[str, dict[str, Any]] = {
    "train": {"lw": 0.9, "ls": "--", "alpha": 0.75},
    "validation": {"marker": "o"},
}


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
    figure, axes = curve_axes()
    longest = max((run.history.train_s or 0.0 for run in runs), default=0.0)
    size, unit = time_unit(longest) if over == "time" else (1.0, "")
    drawn = {s: any(run.history.points(metric, s) for run in runs) for s in _SPLITS}
    for run in runs:
        for split in (name for name, is_drawn in drawn.items() if is_drawn):
            read = run.history.points if over == "step" else run.history.points_by_time
            points = [(x / size, y) for x, y in read(metric, split)]
            style = _SPLITS[split] if drawn["validation"] else {}
            draw_series(axes, points, color=colors[run.name], label="_", **style)
        _ring_at_best(axes, run, metric, over, size, colors[run.name])
    if over == "time":
        axes.set_xlabel(f"{unit} of training")
    axes.set_ylabel(label)
    for run in runs:
        axes.plot([], [], color=colors[run.name], lw=2.5, label=run.name)
    if all(drawn.values()):
        for split, style in _SPLITS.items():
            axes.plot([], [], color=_NEUTRAL, label=split, **{"ms": 3, **style})
    finish_curves(figure, axes, clock=())
    return svg_of(figure)


def run_colors(runs: Sequence[NamedRun]) -> dict[str, str]:
    """A colour per run, the same in all plots of a page."""
    return {run.name: series_color(number) for number, run in enumerate(runs)}


def has_metric(run: NamedRun, metric: str) -> bool:
    """Whether a run has values of a metric to draw."""
    return any(run.history.points(metric, split) for split in _SPLITS)


def has_times(run: NamedRun) -> bool:
    """Whether a run knows its seconds of training."""
    return run.history.train_s is not None


def _ring_at_best(
    axes: object, run: NamedRun, metric: str, over: Over, size: float, color: str
) -> None:
    """A ring around the validation whose weights are kept."""
    line = next(
        (x for x in run.history.of("validation") if x["step"] == run.history.best_step), None
    )
    if line is None or line.get(metric) is None:
        return
    x = line["step"] if over == "step" else line.get("train_s")
    if x is not None:
        axes.plot(  # type: ignore[attr-defined]
            [x / size], [line[metric]], marker="o", ms=8, mfc="none", color=color, ls=""
        )
