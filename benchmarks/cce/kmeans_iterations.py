"""How many k-means iterations a clustering needs: CCE with 5, 50 and 300.

    python -m benchmarks.cce.kmeans_iterations RUN.toml --budgets 8192 --seeds 3

The CCE text found 300 iterations no better than 50. k-means stops where no assignment changes.
Finished cells are kept in `--work`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.cce.cce_variants import iterated_table
from benchmarks.cce.grid import (
    Cell,
    Row,
    Variant,
    grid_parser,
    train_grid,
    train_variant,
    variant_cells,
    variant_table,
    write_grid,
)
from outsize.contracts import EmbeddingTable
from outsize.tables import TABLES

ITERATIONS = (5, 50, 300)
NOTE = "Iterations are the most per clustering; k-means stops where no assignment changes."

VARIANTS: dict[str, Variant] = {
    f"{number} iterations": Variant(f"cce-{number}-iterations") for number in ITERATIONS
}
OWN_TABLES: dict[str, type[EmbeddingTable]] = {
    f"cce-{number}-iterations": iterated_table(number) for number in ITERATIONS
}


def one_cell(cell: Cell) -> Row:
    """Train a variant at a budget with a seed."""
    return train_variant(VARIANTS[cell["variant"]], cell)


def main() -> None:
    """Train the grid and write its page."""
    arguments = grid_parser(__doc__, "cce-kmeans-iterations", "8192").parse_args()
    TABLES.update(OWN_TABLES)
    rows = train_grid(variant_cells(arguments, VARIANTS), one_cell, arguments.work, arguments.part)
    path = Path(arguments.run)
    title = f"k-means iterations of a clustering: {path.name}"
    name, module = f"cce-kmeans-iterations-{path.stem}", "benchmarks.cce.kmeans_iterations"
    write_grid(arguments, name, title, module, rows, partial(variant_table, NOTE))


if __name__ == "__main__":
    main()
