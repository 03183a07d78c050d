"""Curves of metrics over the steps of a run, with the time above."""

from __future__ import annotations

from collections.abc import Sequence

from outsize.reporting.colors import BAYES, SPLITS
from outsize.reporting.line_plot import Plot, Series, draw
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
    series = [
        Series(history.points(metric, split), color, split, markers=split != "train")
        for split, color in SPLITS.items()
    ]
    values = [value for each in series for _, value in each.points]
    return draw(
        Plot(
            series,
            "step",
            label,
            level=_best_reachable(history, metric),
            marks=history.epoch_ends,
            best=history.best_step,
            clock=history.clock,
            log_y=log_scale and bool(values) and max(values) > _LOG_RATIO * min(values) > 0,
        )
    )


def _best_reachable(history: RunHistory, metric: str) -> tuple[float, str, str] | None:
    """Bayes' value as a level: that of the test split, named if validation has another."""
    found = {
        split: points[-1][1]
        for split in ("validation", "test")
        if (points := history.points(f"bayes_{metric}", split))
    }
    if not found:
        return None
    split, value = list(found.items())[-1]
    where = f", {split}" if len(set(found.values())) > 1 else ""
    return value, BAYES, f"best reachable (Bayes{where}) {value:.4f}"


def rates_svg(lines: Sequence[Line]) -> str:
    """The learning rate over steps; that of embeddings, which follows it, on the right axis."""
    history = RunHistory(lines)
    ratio = _embedding_ratio(history)
    return draw(
        Plot(
            [Series(history.points("learning_rate", "train"), SPLITS["train"], "train")],
            "step",
            "dense weights",
            marks=history.epoch_ends,
            best=history.best_step,
            clock=history.clock,
            right=None if ratio is None else (ratio, "embeddings"),
            from_zero=True,
        )
    )


def _embedding_ratio(history: RunHistory) -> float | None:
    """The rate of embeddings divided by that of dense weights; a schedule scales both alike."""
    for line in history.of("train"):
        dense, own = line.get("learning_rate"), line.get("embedding_learning_rate")
        if dense and own:
            return float(own / dense)
    return None
