"""Line plots as small SVG elements, with the legend as text below them.

A report has a plot for each metric, and every run ends with a report: this draws one in a few
milliseconds, where a plotting library takes a good part of a second.
"""

from __future__ import annotations

import html
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outsize.reporting.colors import FAINT, MARK
from outsize.reporting.quantities import time_unit
from outsize.reporting.scales import Scale, padded, ticks

Points = Sequence[tuple[float, float]]
_WIDTH, _HEIGHT = 400, 250  # of the plot, in units that are pixels on a phone
_LETTER = 6.4  # width of a digit
_MAX_MARKERS, _MAX_POINTS, _MAX_MARKS = 40, 1500, 30


@dataclass(frozen=True)
class Series:
    """A line of a plot.

    Attributes:
        points: (x, y), in ascending order of x; one point is drawn as a marker.
        color: Its colour.
        label: Its name in the legend; without one it is not there.
        dashed: Whether the line is dashed.
        thin: Whether it is thin and pale.
        markers: Whether points have markers, unless they are many.
        ranges: For each point the lowest and the highest y, drawn as a bar.
        ring: A point to draw a ring around.
    """

    points: Points
    color: str
    label: str = ""
    dashed: bool = False
    thin: bool = False
    markers: bool = False
    ranges: Points = ()
    ring: tuple[float, float] | None = None


@dataclass(frozen=True)
class Plot:
    """What to draw.

    Attributes:
        series: The lines.
        x_label: The name of the x axis.
        y_label: The name of the y axis.
        level: (y, colour, label) of a horizontal line. It is only named in the legend if it is so
            far off that it would flatten the lines.
        marks: x of faint vertical lines, such as ends of epochs.
        marks_label: What these are.
        best: x of a dotted vertical line.
        clock: (x, seconds), both strictly ascending, for a time axis above the plot.
        right: (factor, name) of an axis on the right that shows y times the factor.
        from_zero: Whether the y axis begins at 0.
        log_x: Whether the x axis is logarithmic; all x are positive.
        log_y: Whether the y axis is; all y are positive.
        keys: Further entries of the legend, which are not drawn.
    """

    series: Sequence[Series]
    x_label: str
    y_label: str
    level: tuple[float, str, str] | None = None
    marks: Sequence[float] = ()
    marks_label: str = "end of an epoch"
    best: float | None = None
    clock: Points = ()
    right: tuple[float, str] | None = None
    from_zero: bool = False
    log_x: bool = False
    log_y: bool = False
    keys: Sequence[Series] = ()


def draw(plot: Plot) -> str:
    """A plot as HTML: one element with the SVG and its legend."""
    level_is_drawn = _level_is_near(plot)
    xs, ys = _scales(plot, level_is_drawn)
    parts = [*_grid(plot, xs, ys), *_marks(plot, xs, ys)]
    if plot.level is not None and level_is_drawn:
        value, color, _ = plot.level
        parts.append(_line((xs.low_px, ys(value)), (xs.high_px, ys(value)), color, 1.4, "5 3"))
    for series in plot.series:
        parts += _series(series, xs, ys)
    legend = "".join(_legend(plot, level_is_drawn))
    return (
        f'<div class="plot"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{html.escape(plot.y_label)}">{"".join(parts)}</svg>'
        f'<div class="legend">{legend}</div></div>'
    )


def _scales(plot: Plot, level_is_drawn: bool) -> tuple[Scale, Scale]:
    xs = [x for series in plot.series for x, _ in series.points]
    xs += [x for x in (*plot.marks, plot.best) if x is not None]
    ys = [y for series in plot.series for _, y in series.points]
    ys += [y for series in plot.series for ends in series.ranges for y in ends if not plot.log_y]
    if plot.level is not None and level_is_drawn:
        ys.append(plot.level[0])
    if plot.from_zero:
        ys.append(0.0)
    top, bottom = (36 if len(plot.clock) > 1 else 8), _HEIGHT - 34
    y_scale = Scale(*padded(ys, plot.log_y, plot.from_zero), bottom, top, plot.log_y)
    left, right = _room_for(y_scale.ticks()), 10.0
    if plot.right is not None:
        right = _room_for(ticks(y_scale.low * plot.right[0], y_scale.high * plot.right[0]))
    x_range = padded(xs, plot.log_x)
    return Scale(*x_range, left, _WIDTH - right, plot.log_x), y_scale


def _room_for(values: Sequence[float]) -> float:
    """The width of an axis with these numbers and its name."""
    return 24 + _LETTER * max((len(_number(value)) for value in values), default=1)


def _kept_inside(place: float, text: str) -> float:
    """The middle of a number, moved to the left where it would be cut at the right edge."""
    return min(place, _WIDTH - 1 - _LETTER * len(text) / 2)


def _level_is_near(plot: Plot) -> bool:
    ys = [y for series in plot.series for _, y in series.points]
    if plot.level is None or not ys:
        return plot.level is not None
    span = max(ys) - min(ys)
    return min(ys) - span <= plot.level[0] <= max(ys) + span


def _grid(plot: Plot, xs: Scale, ys: Scale) -> list[str]:
    """Grid lines, numbers, names and the axes."""
    parts = []
    for x in xs.ticks():
        parts.append(_line((xs(x), ys.low_px), (xs(x), ys.high_px), "#e8edf2", 1))
        parts.append(_text(_kept_inside(xs(x), _number(x)), ys.low_px + 13, _number(x), "middle"))
    for y in ys.ticks():
        parts.append(_line((xs.low_px, ys(y)), (xs.high_px, ys(y)), "#e8edf2", 1))
        parts.append(_text(xs.low_px - 5, ys(y) + 4, _number(y), "end"))
    parts.append(_text((xs.low_px + xs.high_px) / 2, _HEIGHT - 4, plot.x_label, "middle"))
    parts.append(_upright(11, ys, plot.y_label))
    parts.append(_line((xs.low_px, ys.low_px), (xs.high_px, ys.low_px), "#64748b", 1))
    parts.append(_line((xs.low_px, ys.low_px), (xs.low_px, ys.high_px), "#64748b", 1))
    if plot.right is not None:
        factor, name = plot.right
        for y in ticks(ys.low * factor, ys.high * factor):
            parts.append(_text(xs.high_px + 5, ys(y / factor) + 4, _number(y), "start"))
        parts.append(_line((xs.high_px, ys.low_px), (xs.high_px, ys.high_px), "#64748b", 1))
        parts.append(_upright(_WIDTH - 3, ys, name))
    return parts + _time_axis(plot.clock, xs, ys)


def _time_axis(clock: Points, xs: Scale, ys: Scale) -> list[str]:
    if len(clock) < 2:
        return []
    steps, seconds = (list(values) for values in zip(*clock, strict=True))
    size, unit = time_unit(seconds[-1])
    to_time, to_step = line_through(steps, seconds), line_through(seconds, steps)
    top = ys.high_px
    parts = [_line((xs.low_px, top), (xs.high_px, top), "#64748b", 1)]
    for time in ticks(max(to_time(xs.low), 0.0) / size, to_time(xs.high) / size, 4):
        place = xs(to_step(time * size))
        parts.append(_line((place, top), (place, top - 4), "#64748b", 1))
        parts.append(_text(_kept_inside(place, _number(time)), top - 6, _number(time), "middle"))
    middle = (xs.low_px + xs.high_px) / 2
    return [*parts, _text(middle, 11, f"{unit} of training", "middle")]


def line_through(xs: Sequence[float], ys: Sequence[float]) -> Callable[[float], float]:
    """Linear interpolation between two points or more, continued beyond both ends."""

    def value(x: float) -> float:
        i = min(max(bisect_right(xs, x), 1), len(xs) - 1)
        slope = (ys[i] - ys[i - 1]) / (xs[i] - xs[i - 1])
        return ys[i - 1] + (x - xs[i - 1]) * slope

    return value


def _marks(plot: Plot, xs: Scale, ys: Scale) -> list[str]:
    parts = [
        _line((xs(x), ys.low_px), (xs(x), ys.high_px), FAINT, 2) for x in _shown_marks(plot.marks)
    ]
    if plot.best is not None:
        x = xs(plot.best)
        parts.append(_line((x, ys.low_px), (x, ys.high_px), MARK, 1.2, "2 3"))
    return parts


def _shown_marks(marks: Sequence[float]) -> Sequence[float]:
    """All marks, or every n-th of many."""
    every = max(-(-len(marks) // _MAX_MARKS), 1)
    return marks[every - 1 :: every]


def _series(series: Series, xs: Scale, ys: Scale) -> list[str]:
    places = [(xs(x), ys(y)) for x, y in thinned(series.points)]
    parts = []
    for (x, _), (low, high) in zip(series.points, series.ranges, strict=False):
        ends = [ys(max(y, ys.low) if ys.log else y) for y in (low, high)]
        parts.append(_line((xs(x), ends[0]), (xs(x), ends[1]), series.color, 1))
    if len(places) > 1:
        style = ' stroke-dasharray="4 3"' if series.dashed else ""
        style += ' stroke-width="1" opacity="0.7"' if series.thin else ' stroke-width="1.7"'
        path = " ".join(f"{x},{y}" for x, y in places)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{series.color}"{style} '
            'stroke-linejoin="round"/>'
        )
    if len(places) == 1 or (series.markers and len(places) <= _MAX_MARKERS):
        size = 4 if len(places) == 1 else 2.4
        parts += [f'<circle cx="{x}" cy="{y}" r="{size}" fill="{series.color}"/>'
                  for x, y in places]  # fmt: skip
    if series.ring is not None:
        x, y = xs(series.ring[0]), ys(series.ring[1])
        parts.append(f'<circle cx="{x}" cy="{y}" r="6" fill="none" stroke="{series.color}"/>')
    return parts


def thinned(points: Points) -> Points:
    """Points that draw the same line: of many, the lowest and highest of each stretch."""
    if len(points) <= _MAX_POINTS:
        return points
    length = -(-len(points) * 2 // _MAX_POINTS)
    shown: list[tuple[float, float]] = [points[0]]
    for start in range(0, len(points), length):
        stretch = points[start : start + length]
        ends = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
        shown += sorted(ends)
    return [*shown, points[-1]]


def _legend(plot: Plot, level_is_drawn: bool) -> list[str]:
    found = []
    for series in (*plot.series, *plot.keys):
        if series.label and series.points:
            kind = "dot" if len(series.points) == 1 else "dashed" if series.dashed else "solid"
            found.append(_key(series.color, kind, series.label))
    if plot.level is not None:
        _, color, label = plot.level
        found.append(_key(color, "dashed", label + ("" if level_is_drawn else ", not shown")))
    if plot.marks:
        every = max(-(-len(plot.marks) // _MAX_MARKS), 1)
        label = plot.marks_label if every == 1 else f"{plot.marks_label}, every {every}th"
        found.append(_key(FAINT, "solid", label))
    if any(series.ring is not None for series in plot.series):
        found.append(_key(MARK, "ring", "best step"))
    if plot.best is not None:
        found.append(_key(MARK, "dotted", f"best step {plot.best:,}"))
    return found


def _key(color: str, kind: str, label: str) -> str:
    paint = {"dot": "background", "ring": "border-color"}.get(kind, "border-top-color")
    style = f"{paint}:{color}"
    return f'<span><i class="{kind}" style="{style}"></i>{html.escape(label)}</span>'


def _line(
    start: tuple[float, float], end: tuple[float, float], color: str, width: float, dash: str = ""
) -> str:
    style = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}" stroke="{color}" '
        f'stroke-width="{width}"{style}/>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _upright(x: float, ys: Scale, text: str) -> str:
    y = (ys.low_px + ys.high_px) / 2
    return (
        f'<text x="{x}" y="{y:g}" text-anchor="middle" transform="rotate(-90 {x} {y:g})">'
        f"{html.escape(text)}</text>"
    )


def _number(value: float) -> str:
    """A number of an axis, in few characters."""
    if value and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.3g}"
    return f"{value:,.6g}"
