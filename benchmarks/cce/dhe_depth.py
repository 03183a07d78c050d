"""The depth of DHE at a fixed budget, and hash embeddings with a network on top.

    python -m benchmarks.cce.dhe_depth RUN.toml --budgets 2048,8192 --seeds 3

The CCE text finds fewer layers better when the number of parameters is fixed, and speculates that
hashed rows with a network on top could do what DHE's many hashes do. Finished cells are kept in
`--work`.
"""

from __future__ import annotations

from benchmarks.cce.deep_tables import HashedNetworkTable, deep_table
from benchmarks.cce.variant_grid import Variant, VariantGrid
from outsize.contracts import EmbeddingTable

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
GRID = VariantGrid(
    module="benchmarks.cce.dhe_depth",
    name="dhe-depth",
    title="The depth of DHE",
    note=NOTE,
    budgets="2048,8192",
    variants=VARIANTS,
    own_tables=OWN_TABLES,
)


if __name__ == "__main__":
    GRID.run(__doc__)
