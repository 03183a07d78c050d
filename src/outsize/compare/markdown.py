"""The Markdown page of a comparison, `compare.md`: tables of methods over budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from outsize.compare.factors import Factors
from outsize.compare.grid import BASELINE
from outsize.compare.results import Best, Comparison, Point, Spread
from outsize.compare.text_tables import TextTable, best_lines, factors_table, kind_lines
from outsize.reporting.quantities import format_bytes


def to_markdown(
    title: str,
    comparison: Comparison,
    best: Sequence[Best],
    factors: Mapping[str, Factors],
    environment: Mapping[str, str],
) -> str:
    """The comparison as Markdown.

    Args:
        title: Title of the page.
        comparison: The results.
        best: The best method at each budget.
        factors: Compression factors of each method at the loss of full tables.
        environment: Versions and hardware.
    """
    grid = comparison.grid
    sizes = sum(comparison.vocabularies.values())
    parts = [
        f"# {title}\n",
        *(f"- {name}: {fact}" for name, fact in environment.items()),
        f"\n{len(comparison.vocabularies)} tables of {sizes:,} ids together, dim {grid.dim}; caps "
        f"in {grid.unit} per table; test metrics at the best validation, mean over "
        f"{grid.num_seeds} seeds (least to most).\n",
        _grid(comparison.labels[0], comparison, lambda p: f"{p.loss.mean:.4f} ({_range(p.loss)})"),
        _grid(comparison.labels[1], comparison, _quality),
        _grid("Bytes of all tables, index maps included", comparison, _bytes),
        *(f"- {line}" for line in best_lines(comparison, best)),
    ]
    if factors:
        parts += ["", _table(factors_table(factors)), ""]
        parts += [f"- {line}" for line in kind_lines(factors)]
    return "\n".join(parts) + "\n"


def _quality(point: Point) -> str:
    found = point.quality
    return f"{found.mean:.4f} ({_range(found)})" if found else "none"


def _grid(title: str, comparison: Comparison, cell: Callable[[Point], str]) -> str:
    """A table of one quantity, methods over budgets; full tables have one value for all budgets."""
    budgets = comparison.grid.budgets
    rows = []
    if comparison.full is not None:
        rows.append([BASELINE, cell(comparison.full), *[""] * (len(budgets) - 1)])
    for method, curve in comparison.curves.items():
        points = {point.budget: point for point in curve}
        rows.append([method, *(_cell(comparison, method, b, points, cell) for b in budgets)])
    heads = ("method", *(f"{budget:,}" for budget in budgets))
    return f"{_table(TextTable(title, heads, rows))}\n"


def _cell(
    comparison: Comparison,
    method: str,
    budget: int,
    points: Mapping[int | None, Point],
    cell: Callable[[Point], str],
) -> str:
    if budget in points:
        return cell(points[budget])
    unfinished = comparison.unfinished(method, budget)
    return unfinished.status if unfinished else ""


def _table(text: TextTable) -> str:
    lines = [f"**{text.title}**\n", f"| {' | '.join(text.columns)} |"]
    lines += ["|---|" + "--:|" * (len(text.columns) - 1)]
    lines += [f"| {' | '.join(row)} |" for row in text.rows]
    return "\n".join(lines)


def _bytes(point: Point) -> str:
    return format_bytes(point.total_bytes)


def _range(spread: Spread) -> str:
    return f"{spread.low:.4f} to {spread.high:.4f}"
