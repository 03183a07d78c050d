"""Parts of plots: series, legends beside the data, marks, and a time axis over steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from outsize.reporting.colors import BAYES, FAINT, MARK
from outsize.reporting.page import figure_and_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.8
"""Inches: as wide as a phone, where text of 9 points is still read."""
HEIGHT = 3.3
_MAX_MARKS = 30
CHARACTER = 0.063
"""About how many inches a character of 8 points takes."""
_HANDLE, _ROW_HEIGHT = 0.5, 0.16  # inches of a legend in 8 points
_MAX_MARKERS = 40
_UNITS = ((3.0 * 3600, 3600.0, "hours"), (3.0 * 60, 60.0, "minutes"), (0.0, 1.0, "seconds"))

Points = Sequence[tuple[float, float]]


def draw_series(axes: Axes, points: Points, *, color: str, label: str, **style: Any) -> None:
    """A line through points in order; a single point is a marker, and no points are nothing.

    Args:
        axes: Where to draw.
        points: (x, y), in ascending order of x.
        color: The colour of the series.
        label: Its name in the legend.
        style: Further settings of `Axes.plot`, for the line.
    """
    if not points:
        return
    xs, ys = zip(*points, strict=True)
    if len(points) == 1:
        axes.plot(xs, ys, color=color, label=label, marker=style.get("marker") or "o", ls="", ms=5)
        return
    style = {"lw": 1.4, "ms": 3, **style}
    if len(points) > _MAX_MARKERS:
        style.pop("marker", None)
    axes.plot(xs, ys, color=color, label=label, **style)


def draw_best_reachable(axes: Axes, best: float) -> None:
    """Draw the best reachable value, or only its label if the line would flatten the others."""
    low, high = axes.get_ylim()
    label = f"best reachable (Bayes) {best:.4f}"
    if low - (high - low) <= best <= high + (high - low):
        axes.axhline(best, color=BAYES, ls="--", lw=1.2, label=label)
    else:
        axes.plot([], [], color=BAYES, ls="--", lw=1.2, label=f"{label}, not shown")


def mark_steps(axes: Axes, epoch_ends: Sequence[float], best_step: float | None) -> None:
    """Vertical lines at the ends of epochs, behind the data, and at the best step."""
    every = -(-len(epoch_ends) // _MAX_MARKS) or 1
    for number, step in enumerate(epoch_ends[every - 1 :: every]):
        name = "end of an epoch" if every == 1 else f"every {every} epochs"
        label = {} if number else {"label": name}
        axes.axvline(step, color=FAINT, lw=1.0, zorder=0, **label)
    if best_step is not None:
        label = {"label": f"best step {best_step:,}"}
        axes.axvline(best_step, color=MARK, ls=":", lw=1.2, zorder=1, **label)


def add_time_axis(axes: Axes, clock: Points) -> None:
    """An axis above the plot with the time at each step; nothing without two times.

    Args:
        axes: A plot over steps.
        clock: (step, seconds); both ascend strictly.
    """
    if len(clock) < 2:
        return
    from matplotlib.ticker import MaxNLocator

    steps, seconds = (list(values) for values in zip(*clock, strict=True))
    size, unit = time_unit(seconds[-1])
    times = [value / size for value in seconds]
    above = axes.secondary_xaxis(
        "top",
        functions=(_each(_line_through(steps, times)), _each(_line_through(times, steps))),
    )
    above.xaxis.set_major_locator(MaxNLocator(6))
    above.set_xlabel(f"{unit} of training", fontsize=8)
    above.tick_params(labelsize=8)
    above.spines["top"].set_visible(True)


def time_unit(longest_s: float) -> tuple[float, str]:
    """The unit to show times in: its seconds, and its name."""
    return next((size, name) for least, size, name in _UNITS if longest_s >= least)


def curve_axes() -> tuple[Figure, Axes]:
    """An empty plot over steps, with fixed margins: many are drawn, and measuring text is slow."""
    figure, axes = figure_and_axes(WIDTH, HEIGHT, measures_text=False)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("step")
    return figure, axes


def finish_curves(figure: Figure, axes: Axes, clock: Points, has_right_axis: bool = False) -> None:
    """Add the time axis and the legend of a plot from `curve_axes`, and set its margins.

    Args:
        figure: The plot.
        axes: Its axes.
        clock: (step, seconds); both ascend strictly.
        has_right_axis: Whether there are numbers on the right.
    """
    add_time_axis(axes, clock)
    num_rows = legend_below(figure, axes)
    top = 0.44 if len(clock) > 1 else 0.1
    set_margins(figure, num_rows, right=0.7 if has_right_axis else 0.12, top=top)


def set_margins(
    figure: Figure, legend_rows: int, *, left: float = 0.7, right: float = 0.12, top: float = 0.1
) -> None:
    """Margins in inches of a figure whose text is not measured, with room for its legend."""
    width, height = figure.get_size_inches()
    figure.subplots_adjust(
        left=left / width,
        right=1 - right / width,
        top=1 - top / height,
        bottom=(0.5 + _ROW_HEIGHT * legend_rows) / height,
    )


def legend_below(figure: Figure, axes: Axes, columns: int = 3, *others: Axes) -> int:
    """One legend below the axes, where it hides nothing; returns its number of rows."""
    handles, labels = [], []
    for each in (axes, *others):
        more = each.get_legend_handles_labels()
        handles, labels = [*handles, *more[0]], [*labels, *more[1]]
    if not handles:
        return 0
    fitting = [n for n in range(columns, 1, -1) if _legend_width(labels, n) < figure.get_figwidth()]
    columns = fitting[0] if fitting else 1
    num_rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + _ROW_HEIGHT * (num_rows - 1))
    place = "lower center" if figure.get_layout_engine() is None else "outside lower center"
    figure.legend(
        handles, labels, loc=place, ncols=columns, frameon=False, fontsize=8,
        columnspacing=1.2, labelspacing=0.35, borderaxespad=0.2,
    )  # fmt: skip
    return num_rows


def _legend_width(labels: Sequence[str], columns: int) -> float:
    """About how many inches a legend needs, which fills one column after the other."""
    rows = -(-len(labels) // columns)
    widths = [max(map(len, labels[i : i + rows])) for i in range(0, len(labels), rows)]
    return sum(CHARACTER * width + _HANDLE for width in widths)


def _line_through(xs: Sequence[float], ys: Sequence[float]) -> Callable[[float], float]:
    """Linear interpolation, continued beyond both ends."""

    def value(x: float) -> float:
        i = min(max(bisect_right(xs, x), 1), len(xs) - 1)
        slope = (ys[i] - ys[i - 1]) / (xs[i] - xs[i - 1])
        return ys[i - 1] + (x - xs[i - 1]) * slope

    return value


def _each(function: Callable[[float], float]) -> Callable[[Any], Any]:
    """A function of a number as one of arrays."""

    def apply(values: Any) -> Any:
        import numpy as np

        return np.vectorize(function, otypes=[float])(values)

    return apply
