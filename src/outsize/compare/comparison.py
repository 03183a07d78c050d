"""`compare`: run the missing cells of a grid, then write the comparison's files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from outsize.compare.cell_progress import GridProgress
from outsize.compare.comparison_page import comparison_page
from outsize.compare.factors import factors_of
from outsize.compare.files import to_csv, to_plain
from outsize.compare.grid import Grid
from outsize.compare.markdown import to_markdown
from outsize.compare.outcome import Outcome
from outsize.compare.pool import default_workers, run_cells
from outsize.compare.results import Comparison, best_at_each_budget
from outsize.compare.run_cell import saved_outcome
from outsize.compare.text_tables import (
    TextTable,
    best_lines,
    factors_table,
    kind_lines,
    losses_table,
)
from outsize.errors import CellError, ConfigError, WriteError
from outsize.files import reason_of, write_text_atomically
from outsize.ranks.collectives import is_launched_as_rank
from outsize.reporting.environment import environment
from outsize.reporting.progress import print_line
from outsize.suggestions import few
from outsize.training.build import build_device
from outsize.training.build_graph import vocabularies_of_run


def compare(
    grid: Grid, out: Path, *, workers: int | None = None, quiet: bool = False
) -> dict[str, Any]:
    """Run the cells of a grid whose outcome is not in `out`, and write the comparison of all cells.

    Args:
        grid: The cells to compare.
        out: Folder for cells, `compare.csv`, `compare.json`, `compare.md` and `compare.html`.
        workers: Number of processes, each running one cell; 0 runs cells one by one in this
            process. By default one per two cores, or one on a GPU.
        quiet: Print nothing.

    Returns:
        The content of `compare.json`.
    """
    device = build_device(grid.run.train.device)
    if is_launched_as_rank():
        raise ConfigError("compare starts its processes itself: run it without torchrun")
    if workers is not None and workers < 0:
        raise ConfigError(f"--workers must be >= 0, but got {workers}")
    if workers is None:
        workers = default_workers(device)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot make {out}: {reason_of(error)}") from None
    console = Console(stderr=True, quiet=quiet)
    vocabularies = vocabularies_of_run(grid.run)  # encodes the data before cells need it
    if not vocabularies:
        raise ConfigError("the data of this run has no categorical features, so no tables either")
    grid = grid.within(list(vocabularies.values()))
    outcomes = _run_missing(grid, out, workers, console)
    comparison = Comparison.of(grid, vocabularies, outcomes)
    plain = _write(comparison, out, console)
    if comparison.failed:
        names = few(outcome.cell.name for outcome in comparison.failed)
        raise CellError(
            f"{len(comparison.failed)} of {len(outcomes)} cells failed: {names}; the first said: "
            f"{comparison.failed[0].reason}; the others are in {out / 'compare.html'}, and the "
            "same command tries the failed ones again"
        )
    return plain


def _run_missing(grid: Grid, out: Path, workers: int, console: Console) -> list[Outcome]:
    """The outcomes of all cells, in the grid's order."""
    cells = grid.cells(out)
    found = {cell.name: saved_outcome(cell) for cell in cells}
    missing = [cell for cell in cells if found[cell.name] is None]
    num_cached = len(cells) - len(missing)
    if num_cached:
        print_line(console, f"{num_cached} of {len(cells)} cells are already in {out}")
    with GridProgress(len(cells), num_cached, console) as progress:
        for outcome in run_cells(missing, workers, progress):
            found[outcome.cell.name] = outcome
    return [outcome for outcome in found.values() if outcome is not None]


def _write(comparison: Comparison, out: Path, console: Console) -> dict[str, Any]:
    best, factors = best_at_each_budget(comparison), factors_of(comparison)
    facts = environment()
    plain = to_plain(comparison, best, factors, facts)
    title = out.name or "compare"
    files = {
        "compare.csv": to_csv(comparison),
        "compare.json": json.dumps(plain, indent=1) + "\n",
        "compare.md": to_markdown(title, comparison, best, factors, facts),
        "compare.html": comparison_page(title, comparison, best, factors, facts),
    }
    for name, text in files.items():
        write_text_atomically(out / name, text)
    _show(console, losses_table(comparison))
    for line in best_lines(comparison, best):
        print_line(console, line)
    if factors:
        _show(console, factors_table(factors))
        for line in kind_lines(factors):
            print_line(console, line)
    print_line(console, f"→  {os.fspath(out / 'compare.html')}")
    return plain


def _show(console: Console, text: TextTable) -> None:
    table = Table(
        title=text.title,
        title_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    for column in text.columns:
        table.add_column(column, overflow="fold")
    for row in text.rows:
        table.add_row(*row)
    console.print(table, highlight=False)
