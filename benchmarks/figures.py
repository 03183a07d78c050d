"""Figures that matplotlib draws: the style of all of them, and legends beside the data."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.8
"""Inches: as wide as a phone, where text of 9 points is still read."""
HEIGHT = 3.3
_CHARACTER, _HANDLE, _ROW_HEIGHT = 0.063, 0.5, 0.16  # inches of a legend in 8 points


def figure_and_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty figure in the style of the pages; width and height in inches."""
    from matplotlib import rc_context  # matplotlib is slow to import
    from matplotlib.figure import Figure as NewFigure

    with rc_context({"font.size": 9, "xtick.labelsize": 8, "ytick.labelsize": 8}):
        figure = NewFigure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes


def svg_of(figure: Figure) -> str:
    """A figure as an SVG element."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "outsize"}):  # the same figure is the same text
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def legend_below(figure: Figure, axes: Axes, columns: int = 3) -> None:
    """One legend below the axes, where it hides nothing; the figure grows with its rows."""
    handles, labels = axes.get_legend_handles_labels()
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
