"""`compare.csv`, one row per cell, and `compare.json`, with means and compression factors."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from outsize.compare.factors import Factor, Factors
from outsize.compare.outcome import Outcome
from outsize.compare.results import Best, Comparison, Point


def to_csv(comparison: Comparison) -> str:
    """The outcomes as CSV: one row per cell, one column per number."""
    rows = [_row(outcome, comparison.grid.unit) for outcome in comparison.outcomes]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_plain(
    comparison: Comparison,
    best: list[Best],
    factors: Mapping[str, Factors],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Everything but the individual cells, as plain values for JSON."""
    grid, sizes = comparison.grid, comparison.vocabularies
    return {
        "unit": grid.unit,
        "budgets": list(grid.budgets),
        "num_seeds": grid.num_seeds,
        "dim": grid.dim,
        "vocabularies": dict(sizes),
        "bayes": dict(comparison.bayes),
        "full": None if comparison.full is None else _point(comparison.full, comparison.metric),
        "methods": {
            method: {
                "points": [_point(point, comparison.metric) for point in curve],
                "does_not_fit": [
                    budget for budget in grid.budgets if _is_unfit(comparison, method, budget)
                ],
                "factors": _factors(factors[method]) if method in factors else None,
            }
            for method, curve in comparison.curves.items()
        },
        "best": [{**asdict(entry), "ties": list(entry.ties)} for entry in best],
        "failed": {outcome.cell.name: outcome.reason for outcome in comparison.failed},
        "environment": dict(environment),
    }


def _point(point: Point, metric: str) -> dict[str, Any]:
    plain = asdict(point)
    return {**plain, metric: plain.pop("quality")}


def _row(outcome: Outcome, unit: str) -> dict[str, Any]:
    cell, result = outcome.cell, outcome.result
    row = {
        "cell": cell.name,
        "method": cell.method,
        "budget": cell.budget,
        "unit": unit,
        "seed": cell.seed,
        "status": outcome.status,
        "reason": outcome.reason,
    }
    for name, value in result.items():
        if isinstance(value, Mapping):
            row |= {f"{name}_{key}": number for key, number in value.items()}
        else:
            row[name] = value
    return row


def _is_unfit(comparison: Comparison, method: str, budget: int) -> bool:
    outcome = comparison.unfinished(method, budget)
    return outcome is not None and outcome.status == "does not fit"


def _factors(factors: Factors) -> dict[str, Any]:
    return {
        measure: {name: _factor(factor) for name, factor in fits.items()}
        for measure, fits in (("by_cap", factors.by_cap), ("by_bytes", factors.by_bytes))
    }


def _factor(factor: Factor) -> dict[str, Any]:
    size = factor.crossing.size
    return {
        "kind": factor.crossing.kind,
        "size": size if size is not None and math.isfinite(size) else None,
        "factor": factor.factor,
        "largest_table": factor.largest_table,
        "by_seed": list(factor.by_seed),
    }
