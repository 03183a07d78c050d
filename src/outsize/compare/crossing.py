"""The size at which a curve of losses reaches a baseline, and the compression factor there.

"Clustering the Sketch" trains with several caps on each table and asks at which cap the loss equals
that of full tables ("Measuring the Embedding Compression factor"). Between the budgets, and beyond
them, the loss is fitted by a line or a parabola in the logarithm of the size. Curves tend to be
convex, so beyond the budgets the line is the optimistic estimate and the parabola the conservative
one.

Sizes are distinct and ascending. A curve may rise again where large tables overfit; only the first
crossing counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["interpolation", "extrapolation", "bound", "never", "unknown"]


@dataclass(frozen=True)
class Crossing:
    """The size at which a curve reaches the baseline.

    Attributes:
        kind: "interpolation" between sizes that were tried; "extrapolation" beyond the largest;
            "bound" if the smallest size already reaches the baseline; "never" if the curve does not
            approach it; "unknown" if there are too few sizes.
        size: The size at the crossing, or the smallest size tried for a bound.
    """

    kind: Kind
    size: float | None = None


def linear_crossing(sizes: Sequence[float], losses: Sequence[float], baseline: float) -> Crossing:
    """Where the line through two neighbouring points reaches the baseline."""
    reached = _first_reached(losses, baseline)
    if reached == 0:
        return Crossing("bound", float(sizes[0]))
    if len(sizes) < 2:
        return Crossing("unknown")
    right = len(sizes) - 1 if reached is None else reached
    before, after = losses[right - 1], losses[right]
    if after >= before:
        return Crossing("never")
    share = (before - baseline) / (before - after)
    width = math.log(sizes[right] / sizes[right - 1])
    kind: Kind = "extrapolation" if reached is None else "interpolation"
    return Crossing(kind, _grow(sizes[right - 1], share * width))


def quadratic_crossing(
    sizes: Sequence[float], losses: Sequence[float], baseline: float
) -> Crossing:
    """Where the parabola through three points, the nearest or the last, reaches the baseline."""
    line = linear_crossing(sizes, losses, baseline)
    if line.size is None or line.kind == "bound":
        return line
    if len(sizes) < 3:
        return Crossing("unknown")
    right = len(sizes) - 1 if line.kind == "extrapolation" else _first_reached(losses, baseline)
    assert right is not None
    others = [i for i in (right - 2, right + 1) if 0 <= i < len(sizes)]
    middle = math.log(line.size)
    third = min(others, key=lambda i: abs(math.log(sizes[i]) - middle))
    first, *rest = sorted((right - 1, right, third))
    points = [(math.log(sizes[i] / sizes[first]), losses[i]) for i in (first, *rest)]
    root = _descent_to(baseline, points)
    if line.kind == "interpolation":
        low, high = (math.log(sizes[i] / sizes[first]) for i in (right - 1, right))
        # Up to rounding, the crossing lies between them.
        root = high if root is None else min(max(root, low), high)
    elif root is None or root < points[2][0]:
        return Crossing("never")
    return Crossing(line.kind, _grow(sizes[first], root))


def compression(vocabularies: Sequence[int], rows: float) -> float:
    """Rows of all full tables, divided by the rows left if each table is cut to `rows`."""
    return sum(vocabularies) / sum(min(size, rows) for size in vocabularies)


def _first_reached(losses: Sequence[float], baseline: float) -> int | None:
    return next((i for i, loss in enumerate(losses) if loss <= baseline), None)


def _descent_to(level: float, points: Sequence[tuple[float, float]]) -> float | None:
    """Where the parabola through three points falls below a level; the first point is at x = 0."""
    (_, y0), (x1, y1), (x2, y2) = points
    slope = (y1 - y0) / x1
    a = ((y2 - y1) / (x2 - x1) - slope) / x2
    b = slope - a * x1
    c = y0 - level
    under_root = b * b - 4 * a * c
    if under_root < 0:
        return None
    root = math.sqrt(under_root)
    if b <= 0 and root - b > 0:
        return 2 * c / (root - b)  # the same as below, without cancellation where a is near 0
    return (-b - root) / (2 * a) if a else None


def _grow(size: float, exponent: float) -> float:
    """`size` · e^`exponent`, or infinity."""
    try:
        return size * math.exp(exponent)
    except OverflowError:
        return math.inf
