"""Text tables and summary lines of a comparison, for the terminal and the pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outsize.compare.crossing import Kind
from outsize.compare.factors import FITS, Factor, Factors, format_factor
from outsize.compare.grid import BASELINE, QUANTIZED
from outsize.compare.results import Best, Comparison, Point
from outsize.data import SyntheticConfig
from outsize.reporting.quantities import format_bytes

_MEANINGS: dict[Kind, str] = {
    "interpolation": "between two budgets that were tried",
    "extrapolation": "beyond the budgets tried",
    "bound": "better than full tables at the smallest budget tried; a smaller one may do",
    "never": "the curve does not lead to the loss of full tables",
    "unknown": "too few budgets to tell",
}


@dataclass(frozen=True)
class TextTable:
    """A table of strings.

    Attributes:
        title: Its title.
        columns: The column headers.
        rows: The rows, with one string per column.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def losses_table(comparison: Comparison) -> TextTable:
    """The test metrics of every method at every budget."""
    grid = comparison.grid
    rows = [_point_row(comparison, BASELINE, None, comparison.full)]
    for method, curve in comparison.curves.items():
        points = {point.budget: point for point in curve}
        rows += [_point_row(comparison, method, b, points.get(b)) for b in grid.budgets]
    loss, quality = comparison.labels
    columns = ("method", "cap", "parameters", "bytes", loss, "range", quality, "seeds")
    title = f"Test metrics at the best validation, means over seeds; caps in {grid.unit} per table"
    return TextTable(title, columns, rows)


def factors_table(factors: Mapping[str, Factors]) -> TextTable:
    """How many times smaller each method is at the loss of full tables."""
    rows = []
    for method, found in factors.items():
        for name in FITS:
            cap, size = found.by_cap[name], found.by_bytes[name]
            rows.append([method, name, cap.describe(), _largest(cap), size.describe()])
    columns = ("method", "fit", "by rows", "largest", "by bytes")
    return TextTable("Compression at the loss of full tables", columns, rows)


def kind_lines(factors: Mapping[str, Factors]) -> list[str]:
    """One line for each kind of factor in the table: what it means."""
    shown = {
        factor.crossing.kind
        for found in factors.values()
        for factor in (*found.by_cap.values(), *found.by_bytes.values())
    }
    lines = [f"{kind}: {meaning}" for kind, meaning in _MEANINGS.items() if kind in shown]
    if any(len(f.by_seed) > 1 for found in factors.values() for f in found.by_cap.values()):
        lines.append(
            "factors are of mean losses; a range is of single seeds, each at its own full tables"
        )
    return lines


def best_lines(comparison: Comparison, best: Sequence[Best]) -> list[str]:
    """One line per budget: the best method."""
    unit, num_seeds = comparison.grid.unit, comparison.grid.num_seeds
    lines = []
    for entry in best:
        found = f"{entry.method} ({comparison.labels[0]} {entry.loss.mean:.5f})"
        line = f"at {entry.budget:,} {unit} per table: {found}"
        if entry.ties:
            line += f", a tie with {', '.join(entry.ties)}: their ranges overlap"
        lines.append(line)
    needs_full = [method for method in comparison.grid.methods if method in QUANTIZED]
    if needs_full:
        lines.append(f"{' and '.join(needs_full)}: the full tables must fit in training")
    data = comparison.grid.run.data
    if isinstance(data, SyntheticConfig):
        lines.append(
            f"the log is synthetic: ids of a feature have {data.num_clusters:,} planted clusters, "
            "which favours methods that cluster"
        )
    if num_seeds == 1:
        lines.append("one seed shows no spread: small differences mean nothing")
    return lines


def _point_row(
    comparison: Comparison, method: str, budget: int | None, point: Point | None
) -> list[str]:
    cap = "none" if budget is None else f"{budget:,}"
    unfinished = comparison.unfinished(method, budget)
    if point is None:
        return [method, cap, "", "", unfinished.status if unfinished else "", "", "", "0"]
    asked = comparison.grid.num_seeds
    return [
        method,
        cap,
        f"{point.params:,}",
        format_bytes(point.total_bytes),
        f"{point.loss.mean:.5f}",
        f"{point.loss.low:.4f}–{point.loss.high:.4f}",
        "none" if point.quality is None else f"{point.quality.mean:.4f}",
        str(asked) if point.num_seeds == asked else f"{point.num_seeds} of {asked}",
    ]


def _largest(factor: Factor) -> str:
    if factor.largest_table is None or not factor.is_smaller:
        return "–"
    return factor.sign + format_factor(factor.largest_table)
