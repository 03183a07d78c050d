"""How many k-means iterations a clustering needs: CCE with 5, 50 and 300.

    python -m benchmarks.cce.kmeans_iterations RUN.toml --budgets 8192 --seeds 3

The CCE text found 300 iterations no better than 50. k-means stops where no assignment changes.
Finished cells are kept in `--work`.
"""

from __future__ import annotations

from benchmarks.cce.cce_variants import iterated_table
from benchmarks.cce.variant_grid import Variant, VariantGrid
from outsize.contracts import EmbeddingTable

ITERATIONS = (5, 50, 300)
NOTE = "Iterations are the most per clustering; k-means stops where no assignment changes."

VARIANTS: dict[str, Variant] = {
    f"{number} iterations": Variant(f"cce-{number}-iterations") for number in ITERATIONS
}
OWN_TABLES: dict[str, type[EmbeddingTable]] = {
    f"cce-{number}-iterations": iterated_table(number) for number in ITERATIONS
}
GRID = VariantGrid(
    module="benchmarks.cce.kmeans_iterations",
    name="cce-kmeans-iterations",
    title="k-means iterations of a clustering",
    note=NOTE,
    budgets="8192",
    variants=VARIANTS,
    own_tables=OWN_TABLES,
)


if __name__ == "__main__":
    GRID.run(__doc__)
