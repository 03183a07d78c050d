"""Grids of variants: tables and settings, at several budgets and seeds."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.cce.grid import (
    Cell,
    Row,
    budgets_of,
    grid_parser,
    mean_and_range,
    train_grid,
    trained,
    write_grid,
)
from outsize.contracts import EmbeddingTable
from outsize.tables import TABLES


@dataclass(frozen=True)
class Variant:
    """A table and settings.

    Attributes:
        method: A key of `TABLES`.
        settings: Further settings of the run.
    """

    method: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class VariantGrid:
    """A command that trains variants at several budgets and writes their page.

    Attributes:
        module: The script, such as `benchmarks.cce.dhe_depth`.
        name: The name of its results, before that of the run.
        title: The title of its page, before the run.
        note: What a reader has to know besides.
        budgets: The default budgets, by commas.
        variants: What is trained, by name.
        own_tables: Tables of the variants that `TABLES` does not have.
    """

    module: str
    name: str
    title: str
    note: str
    budgets: str
    variants: Mapping[str, Variant]
    own_tables: Mapping[str, type[EmbeddingTable]] = field(default_factory=dict)

    def run(self, description: str | None, one: Callable[[Cell], Row] | None = None) -> None:
        """Train the grid and write its page.

        Args:
            description: What the command does.
            one: Trains one cell; by default `train_cell`.
        """
        work = self.module.removeprefix("benchmarks.").replace(".", "-").replace("_", "-")
        arguments = grid_parser(description, work, self.budgets).parse_args()
        TABLES.update(self.own_tables)
        cells = variant_cells(arguments, self.variants)
        rows = train_grid(cells, one or self.train_cell, arguments.work, arguments.part)
        run = Path(arguments.run)
        write_grid(
            arguments, f"{self.name}-{run.stem}", f"{self.title}: {run.name}", self.module, rows,
            partial(variant_table, self.note),
        )  # fmt: skip

    def train_cell(self, cell: Cell) -> Row:
        """Train a variant at the budget and with the seed of a cell."""
        variant = self.variants[cell["variant"]]
        tables = ["embeddings.kind=tables", f'embeddings.method="{variant.method}"']
        size = [f"embeddings.max_params={cell['budget']}", f"seed={cell['seed']}"]
        return trained(cell["run"], [*cell["settings"], *tables, *size, *variant.settings])


def variant_cells(arguments: argparse.Namespace, variants: Iterable[str]) -> list[Cell]:
    """The cells of all variants at all budgets, seed by seed."""
    return [
        {"run": arguments.run, "settings": arguments.set, "variant": variant, "budget": budget,
         "seed": seed}
        for seed in range(arguments.seeds)
        for budget in budgets_of(arguments)
        for variant in variants
    ]  # fmt: skip


def variant_table(note: str, rows: Sequence[Row]) -> str:
    """BCE and AUC of variants over budgets as Markdown.

    Args:
        note: What a reader has to know besides.
        rows: What was measured.
    """
    seeds = ", ".join(str(seed) for seed in sorted({row["seed"] for row in rows}))
    budgets = list(dict.fromkeys(row["budget"] for row in rows))
    heads = " | ".join(f"BCE at {budget:,} | AUC at {budget:,}" for budget in budgets)
    lines = [
        "Test BCE and AUC at the best validation, mean (range) of the seeds "
        f"{seeds}; caps in parameters per table. {note}".strip()
        + "\n",
        f"| variant | {heads} |",
        "|---|" + "--:|--:|" * len(budgets),
    ]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        numbers = []
        for budget in budgets:
            same = [r for r in rows if (r["variant"], r["budget"]) == (variant, budget)]
            numbers += [mean_and_range(same, "loss"), mean_and_range(same, "auc")]
        lines.append(f"| {variant} | {' | '.join(numbers)} |")
    return "\n".join(lines) + "\n"
