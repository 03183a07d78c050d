"""Compression factors: how many times smaller than full tables, at the same loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

from outsize.compare.crossing import (
    Crossing,
    compression,
    linear_crossing,
    quadratic_crossing,
)
from outsize.compare.results import Comparison

FITS = {"linear": linear_crossing, "quadratic": quadratic_crossing}


@dataclass(frozen=True)
class Factor:
    """The compression factor of a method, by one fit.

    Attributes:
        crossing: Where the curve reaches the baseline, as a cap or in bytes.
        factor: How many times smaller that is; `None` if the curve does not reach the baseline.
        largest_table: The factor of the largest table alone; only when measured by caps.
    """

    crossing: Crossing
    factor: float | None = None
    largest_table: float | None = None

    def describe(self) -> str:
        """The factor, and how it was found."""
        kind = self.crossing.kind
        if self.factor is None:
            return kind
        sign = "> " if kind == "bound" else ""
        return f"{sign}{format_factor(self.factor)} ({kind})"


@dataclass(frozen=True)
class Factors:
    """The compression factors of a method, by the name of the fit.

    Attributes:
        by_cap: Σ vocabulary / Σ min(vocabulary, rows), where `rows` is the number of full rows that
            fit the cap.
        by_bytes: Bytes of full tables divided by total bytes, including index maps.
    """

    by_cap: dict[str, Factor]
    by_bytes: dict[str, Factor]


def factors_of(comparison: Comparison) -> dict[str, Factors]:
    """The factors of every method; empty without a baseline."""
    full, grid = comparison.full, comparison.grid
    if full is None:
        return {}
    sizes = list(comparison.vocabularies.values())

    def by_cap(crossing: Crossing) -> Factor:
        if crossing.size is None:
            return Factor(crossing)
        rows = grid.rows_within(crossing.size)
        return Factor(crossing, compression(sizes, rows), compression([max(sizes)], rows))

    def by_bytes(crossing: Crossing) -> Factor:
        if crossing.size is None:
            return Factor(crossing)
        return Factor(crossing, full.total_bytes / crossing.size)

    found = {}
    for method, curve in comparison.curves.items():
        caps = [(float(point.budget or 0), point.loss.mean) for point in curve]
        sized = [(float(point.total_bytes), point.loss.mean) for point in curve]
        found[method] = Factors(
            {name: by_cap(fit(*_columns(caps), full.loss.mean)) for name, fit in FITS.items()},
            {name: by_bytes(fit(*_columns(sized), full.loss.mean)) for name, fit in FITS.items()},
        )
    return found


def format_factor(factor: float) -> str:
    """Format a factor for display: 1,640×, 12.3×, 0.85×."""
    digits = 0 if factor >= 100 else 1 if factor >= 10 else 2
    return f"{factor:,.{digits}f}×" if math.isfinite(factor) else "∞×"


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Distinct sizes in ascending order, and their losses; of equal sizes the first is used."""
    by_size: dict[float, float] = {}
    for size, loss in sorted(points, key=lambda point: point[0]):
        by_size.setdefault(size, loss)
    return list(by_size), list(by_size.values())
