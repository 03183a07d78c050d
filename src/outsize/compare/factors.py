"""Compression factors: how many times smaller than full tables, at the same loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from outsize.compare.crossing import (
    Crossing,
    compression,
    linear_crossing,
    quadratic_crossing,
)
from outsize.compare.results import Comparison

FITS = {"linear": linear_crossing, "quadratic": quadratic_crossing}
_SMALLER = 1.005  # shown as 1.01× or more


@dataclass(frozen=True)
class Factor:
    """The compression factor of a method, by one fit.

    Attributes:
        crossing: Where the curve reaches the baseline, as a cap or in bytes.
        factor: How many times smaller that is; `None` if the curve does not reach the baseline.
        largest_table: The factor of the largest table alone; only when measured by caps.
        by_seed: The factor of each seed's own curve, at its own full tables; `None` for a curve
            that does not reach them.
    """

    crossing: Crossing
    factor: float | None = None
    largest_table: float | None = None
    by_seed: tuple[float | None, ...] = ()

    def describe(self) -> str:
        """The factor with its range over seeds, and how it was found."""
        if self.factor is None:
            return self.crossing.kind
        shown = format_factor(self.factor)
        found = ", ".join((*self._seeds(shown), self.crossing.kind))
        if self.is_smaller:
            return f"{self.sign}{shown} ({found})"
        return f"not below full size{'' if shown == '1.00×' else f': {shown}'} ({found})"

    @property
    def is_smaller(self) -> bool:
        """Whether the method is smaller than full tables, to the digits that are shown."""
        return self.factor is not None and self.factor >= _SMALLER

    @property
    def sign(self) -> str:
        """What stands before a factor that is only a bound."""
        return "> " if self.crossing.kind == "bound" else ""

    def _seeds(self, shown: str) -> list[str]:
        """The range over seeds, if it differs from what is shown; and how many have no factor."""
        reached = [factor for factor in self.by_seed if factor is not None]
        ends = [format_factor(end(reached)) for end in (min, max)] if len(reached) > 1 else []
        parts = [] if set(ends) <= {shown} else [" to ".join(ends)]
        without = len(self.by_seed) - len(reached)
        if without and len(reached):
            parts.append(f"none for {without} of {len(self.by_seed)} seeds")
        return parts


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
    """The factors of every method, of mean losses and of each seed; empty without a baseline."""
    seeds = [_factors_of_means(seed) for seed in comparison.by_seed()]
    return {
        method: _with_seeds(factors, [found[method] for found in seeds if method in found])
        for method, factors in _factors_of_means(comparison).items()
    }


def _with_seeds(factors: Factors, seeds: Sequence[Factors]) -> Factors:
    """The factors of a method, together with those of its seeds."""

    def joined(
        means: Mapping[str, Factor], seeds: Sequence[Mapping[str, Factor]]
    ) -> dict[str, Factor]:
        return {
            name: replace(factor, by_seed=tuple(fits[name].factor for fits in seeds))
            for name, factor in means.items()
        }

    return Factors(
        joined(factors.by_cap, [found.by_cap for found in seeds]),
        joined(factors.by_bytes, [found.by_bytes for found in seeds]),
    )


def _factors_of_means(comparison: Comparison) -> dict[str, Factors]:
    """The factors of the mean losses of every method."""
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
