"""The depth of DHE at a fixed budget, and hash embeddings with a network on top.

    python -m benchmarks.cce.dhe_depth RUN.toml --budgets 2048,8192 --seeds 3

The CCE text finds fewer layers better when the number of parameters is fixed, and speculates that
hashed rows with a network on top could do what DHE's many hashes do. Finished cells are kept in
`--work`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.cce.deep_tables import HashedNetworkTable, deep_table
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

DEPTHS = (1, 2, 3, 5)
NOTE = (
    "Layers are those before the output layer; the text and the method `dhe` have three. Layers "
    "are as wide as the cap allows, and as many hashes are their input."
)

VARIANTS: dict[str, Variant] = {
    **{f"DHE, layers: {depth}": Variant(f"deep-{depth}") for depth in DEPTHS},
    "hashed rows, one hidden layer": Variant("hashed-network"),
    "hash embeddings": Variant("hash-embedding"),
}
OWN_TABLES: dict[str, type[EmbeddingTable]] = {
    **{f"deep-{depth}": deep_table(depth) for depth in DEPTHS},
    "hashed-network": HashedNetworkTable,
}


def one_cell(cell: Cell) -> Row:
    """Train a variant at a budget with a seed."""
    return train_variant(VARIANTS[cell["variant"]], cell)


def main() -> None:
    """Train the grid and write its page."""
    arguments = grid_parser(__doc__, "cce-dhe-depth", "2048,8192").parse_args()
    TABLES.update(OWN_TABLES)
    rows = train_grid(variant_cells(arguments, VARIANTS), one_cell, arguments.work, arguments.part)
    path = Path(arguments.run)
    title = f"The depth of DHE: {path.name}"
    write_grid(
        arguments,
        f"dhe-depth-{path.stem}",
        title,
        "benchmarks.cce.dhe_depth",
        rows,
        partial(variant_table, NOTE),
    )


if __name__ == "__main__":
    main()
