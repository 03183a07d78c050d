"""Parts of figures that matplotlib draws: series, and legends beside the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outsize.reporting.colors import BAYES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.8
"""Inches: as wide as a phone, where text of 9 points is still read."""
HEIGHT = 3.3
_CHARACTER, _HANDLE, _ROW_HEIGHT = 0.063, 0.5, 0.16  # inches of a legend in 8 points


def draw_series(
    axes: Axes, points: Sequence[tuple[float, float]], *, color: str, label: str, **style: Any
) -> None:
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
    else:
        axes.plot(xs, ys, color=color, label=label, **{"lw": 1.4, "ms": 3, **style})


def draw_best_reachable(axes: Axes, best: float) -> None:
    """Draw the best reachable value, or only its label if the line would flatten the others."""
    low, high = axes.get_ylim()
    label = f"best reachable (Bayes) {best:.4f}"
    if low - (high - low) <= best <= high + (high - low):
        axes.axhline(best, color=BAYES, ls="--", lw=1.2, label=label)
    else:
        axes.plot([], [], color=BAYES, ls="--", lw=1.2, label=f"{label}, not shown")


def legend_below(figure: Figure, axes: Axes, columns: int = 3, *others: Axes) -> None:
    """One legend below the axes, where it hides nothing; the figure grows with its rows."""
    handles: list[Any] = []
    labels: list[str] = []
    for each in (axes, *others):
        more = each.get_legend_handles_labels()
        handles, labels = [*handles, *more[0]], [*labels, *more[1]]
    if not handles:
        return
    fitting = [n for n in range(columns, 1, -1) if _legend_width(labels, n) < figure.get_figwidth()]
    columns = fitting[0] if fitting else 1
    num_rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + _ROW_HEIGHT * (num_rows - 1))
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8,
        columnspacing=1.2, labelspacing=0.35,
    )  # fmt: skip


def _legend_width(labels: Sequence[str], columns: int) -> float:
    """About how many inches a legend needs; its first columns have one row more than the others."""
    rows, larger = divmod(len(labels), columns)
    widths, start = [], 0
    for column in range(columns):
        stop = start + rows + (column < larger)
        widths.append(max(map(len, labels[start:stop]), default=0))
        start = stop
    return sum(_CHARACTER * width + _HANDLE for width in widths if width)
