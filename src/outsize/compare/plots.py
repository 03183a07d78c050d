"""Plots of loss and quality over size: a curve per method, with full tables and Bayes' optimum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from outsize.compare.results import Comparison, Point, Spread
from outsize.reporting.colors import MARK, series_color
from outsize.reporting.page import figure_and_axes, svg_of
from outsize.reporting.plots import WIDTH, draw_best_reachable, legend_below
from outsize.reporting.quantities import format_bytes, format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Metric = Literal["loss", "quality"]
Size = Literal["params", "total_bytes"]
_MARKERS = "osD^vP<>Xhd*"
_LABELS = {
    "params": "parameters of all tables",
    "total_bytes": "bytes of all tables, index maps included",
}
_LEGEND_COLUMNS = 4
_STEP = 0.006  # offset between methods of equal size, as a share of the axis, to separate bars


def size_svg(comparison: Comparison, metric: Metric, size: Size) -> str:
    """A plot of a metric over a size; bars show the range over seeds."""
    num_methods = len(comparison.curves)
    figure, axes = figure_and_axes(WIDTH, 3.2 + 0.2 * (num_methods // _LEGEND_COLUMNS + 1))
    sizes = [getattr(point, size) for curve in comparison.curves.values() for point in curve]
    step = _STEP * math.log(max(sizes) / min(sizes)) if sizes else 0.0
    for i, (method, curve) in enumerate(comparison.curves.items()):
        shift = math.exp(step * (i - (num_methods - 1) / 2))
        points = [(getattr(point, size) * shift, _metric_of(point, metric)) for point in curve]
        _draw_curve(axes, points, method, i)
    full = None if comparison.full is None else _metric_of(comparison.full, metric)
    if full is not None:
        axes.axhline(full.mean, color=MARK, lw=1.2, label="full tables")
        axes.axhspan(full.low, full.high, color=MARK, alpha=0.12, lw=0)
    name = "loss" if metric == "loss" else comparison.metric
    if name in comparison.bayes:
        draw_best_reachable(axes, comparison.bayes[name])
    _scale(axes, size)
    axes.set_xlabel(_LABELS[size])
    axes.set_ylabel(f"test {comparison.labels[0 if metric == 'loss' else 1]}")
    legend_below(figure, axes, _LEGEND_COLUMNS)
    return svg_of(figure)


def _draw_curve(
    axes: Axes, points: Sequence[tuple[float, Spread | None]], method: str, number: int
) -> None:
    drawn = [(x, spread) for x, spread in points if spread is not None]
    if not drawn:
        return
    below = [spread.mean - spread.low for _, spread in drawn]
    above = [spread.high - spread.mean for _, spread in drawn]
    axes.errorbar(
        [x for x, _ in drawn],
        [spread.mean for _, spread in drawn],
        yerr=[below, above],
        color=series_color(number),
        marker=_MARKERS[number % len(_MARKERS)],
        ms=4,
        lw=1.4,
        elinewidth=0.9,
        capsize=2.5,
        label=method,
    )


def _metric_of(point: Point, metric: Metric) -> Spread | None:
    return point.loss if metric == "loss" else point.quality


def _scale(axes: Axes, size: Size) -> None:
    """Make the axis logarithmic, with readable tick labels."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    subs = (1.0,) if high / low > 300 else (1.0, 3.0) if high / low > 30 else (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    write = format_bytes if size == "total_bytes" else format_count
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: write(value).replace(".0", "")))
