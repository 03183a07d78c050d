"""Curves of metrics over the steps of a run, with the time above."""

from __future__ import annotations

from collections.abc import Sequence

from outsize.reporting.colors import SPLITS
from outsize.reporting.page import svg_of
from outsize.reporting.plots import (
    curve_axes,
    draw_best_reachable,
    draw_series,
    finish_curves,
    mark_steps,
)
from outsize.training.report.history import Line, RunHistory

_LOG_RATIO = 30


def curve_svg(lines: Sequence[Line], metric: str, label: str, log_scale: bool = False) -> str:
    """A metric over steps for every split that has it, with Bayes' value as a line.

    Args:
        lines: The lines of the log.
        metric: The name of the metric.
        label: Its name on the axis.
        log_scale: Whether values of several sizes, if positive, are on a logarithmic axis.
    """
    history = RunHistory(lines)
    figure, axes = curve_axes()
    values: list[float] = []
    for split, color in SPLITS.items():
        points = history.points(metric, split)
        values += [value for _, value in points]
        marker = None if split == "train" else "o"
        draw_series(axes, points, color=color, label=split, marker=marker)
    if log_scale and values and max(values) > _LOG_RATIO * min(values) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    if bayes := [x[f"bayes_{metric}"] for x in lines if x.get(f"bayes_{metric}") is not None]:
        draw_best_reachable(axes, bayes[0])
    mark_steps(axes, history.epoch_ends, history.best_step)
    axes.set_ylabel(label)
    finish_curves(figure, axes, history.clock)
    return svg_of(figure)


def rates_svg(lines: Sequence[Line]) -> str:
    """The learning rate over steps; that of embeddings, which follows it, on the right axis."""
    history = RunHistory(lines)
    figure, axes = curve_axes()
    points = history.points("learning_rate", "train")
    draw_series(axes, points, color=SPLITS["train"], label="train")
    axes.set_ylim(0, max((rate for _, rate in points), default=0.0) * 1.08 or None)
    axes.set_ylabel("learning rate, dense weights")
    ratio = _embedding_ratio(history)
    if ratio is not None:
        right = axes.secondary_yaxis("right", functions=(lambda y: y * ratio, lambda y: y / ratio))
        right.set_ylabel("learning rate, embeddings", fontsize=9)
        right.tick_params(labelsize=8)
        right.yaxis.set_major_formatter("{x:g}")
        right.spines["right"].set_visible(True)
    mark_steps(axes, history.epoch_ends, history.best_step)
    finish_curves(figure, axes, history.clock, has_right_axis=ratio is not None)
    return svg_of(figure)


def _embedding_ratio(history: RunHistory) -> float | None:
    """The rate of embeddings divided by that of dense weights; a schedule scales both alike."""
    for line in history.of("train"):
        dense, own = line.get("learning_rate"), line.get("embedding_learning_rate")
        if dense and own:
            return float(own / dense)
    return None
