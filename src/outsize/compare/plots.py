"""Plots of loss and quality over size: a curve per method, with full tables and Bayes' optimum."""

from __future__ import annotations

import math
from typing import Literal

from outsize.compare.results import Comparison, Point, Spread
from outsize.reporting.colors import BAYES, MARK, series_color
from outsize.reporting.line_plot import Plot, Series, draw
from outsize.reporting.quantities import size_unit

Metric = Literal["loss", "quality"]
Size = Literal["params", "total_bytes"]
_LEAST_SPAN = 1.5
_STEP = 0.006  # offset between methods of equal size, as a share of the axis, to separate bars


def size_svg(comparison: Comparison, metric: Metric, size: Size) -> str:
    """A plot of a metric over a size; bars show the range over seeds."""
    sizes = [getattr(point, size) for curve in comparison.curves.values() for point in curve]
    most = max(sizes, default=10)
    low, high = float(min(sizes, default=1)), float(most)
    if low * _LEAST_SPAN > high:  # one budget: room for a line of full tables, and side by side
        low, high = high / _LEAST_SPAN, high * _LEAST_SPAN
    unit, x_label = _axis(size, most)
    step = _STEP * math.log(high / low)
    series = []
    for i, (method, curve) in enumerate(comparison.curves.items()):
        shift = math.exp(step * (i - (len(comparison.curves) - 1) / 2)) / unit
        drawn = [(getattr(point, size) * shift, _metric_of(point, metric)) for point in curve]
        known = [(x, spread) for x, spread in drawn if spread is not None]
        means = [(x, spread.mean) for x, spread in known]
        ranges = [(spread.low, spread.high) for _, spread in known]
        series.append(Series(means, series_color(i), method, markers=True, ranges=ranges))
    full = None if comparison.full is None else _metric_of(comparison.full, metric)
    if full is not None:
        ends = (low / unit, high / unit)
        series.append(Series([(x, full.mean) for x in ends], MARK, "full tables"))
        for edge in {full.low, full.high} - {full.mean}:
            series.append(Series([(x, edge) for x in ends], MARK, dashed=True, thin=True))
    best = comparison.bayes.get("loss" if metric == "loss" else comparison.metric)
    level = None if best is None else (best, BAYES, f"best reachable (Bayes) {best:.4f}")
    y_label = f"test {comparison.labels[0 if metric == 'loss' else 1]}"
    is_log = any(each.points for each in series)
    return draw(Plot(series, x_label, y_label, level=level, log_x=is_log))


def _metric_of(point: Point, metric: Metric) -> Spread | None:
    return point.loss if metric == "loss" else point.quality


def _axis(size: Size, largest: int) -> tuple[float, str]:
    """What sizes are divided by on the axis, and its name."""
    if size == "params":
        unit, name = size_unit(largest, ("", "thousand ", "million ", "billion "))
        return unit, f"{name}parameters of all tables"
    unit, name = size_unit(largest, ("bytes", "kB", "MB", "GB"))
    return unit, f"{name} of all tables, index maps included"
