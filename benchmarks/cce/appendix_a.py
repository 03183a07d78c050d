"""What did not work for the CCE text (its Appendix A), each idea beside plain CCE.

    python -m benchmarks.cce.appendix_a RUN.toml --budgets 2048,8192 --seeds 3

Each variant is the run with its own table, without and with probed clusterings.
Seeding by product quantization first trains full tables for one epoch. Finished cells are kept in
`--work`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.cce.cce_variants import (
    HelpersTable,
    LargeSketchTable,
    ResidualHelperTable,
    seeded_table,
)
from benchmarks.cce.grid import Cell, Row
from benchmarks.cce.residual_quantization import ResidualQuantizedTable
from benchmarks.cce.variant_grid import Variant, VariantGrid
from outsize.contracts import EmbeddingTable
from outsize.tables import TABLES
from outsize.training import load_config, train

_PROBE = "embeddings.recluster.probe=true"
_PROBE_HELPER = "embeddings.recluster.probe={helper=true}"
_NO_CLUSTERING = "embeddings.recluster.count=0"
NOTE = (
    "A cap is that after the first clustering where a variant has more parameters before it. "
    "Seeding trains full tables for one epoch before, which is not counted."
)


VARIANTS: dict[str, Variant] = {
    "CCE": Variant("cce"),
    "2 helpers": Variant("cce-2-helpers"),
    "hash embeddings": Variant("hash-embedding"),
    "hash embeddings, residual quantization": Variant("residual-quantized"),
    "seeded with PQ": Variant("seeded", (_NO_CLUSTERING,)),
    "seeded with PQ, its codes kept": Variant("seeded-codes", (_NO_CLUSTERING,)),
    "4 times the parameters before": Variant("cce-large-sketch"),
    "helper starts at residuals": Variant("cce-residual-helper"),
    "CCE, probed": Variant("cce", (_PROBE,)),
    "CCE, probed, helper at the end": Variant("cce", (_PROBE_HELPER,)),
    "hash embeddings, residual quantization, probed": Variant("residual-quantized", (_PROBE,)),
    "helper starts at residuals, probed": Variant("cce-residual-helper", (_PROBE_HELPER,)),
    "2 helpers, probed": Variant("cce-2-helpers", (_PROBE_HELPER,)),
    "seeded with PQ, its codes kept, then probed": Variant("seeded-codes", (_PROBE,)),
    "4 times the parameters before, probed": Variant("cce-large-sketch", (_PROBE,)),
}


OWN_TABLES: dict[str, type[EmbeddingTable]] = {
    "cce-2-helpers": HelpersTable,
    "cce-large-sketch": LargeSketchTable,
    "cce-residual-helper": ResidualHelperTable,
    "residual-quantized": ResidualQuantizedTable,
}
GRID = VariantGrid(
    module="benchmarks.cce.appendix_a",
    name="cce-appendix-a",
    title="What did not work for the CCE text",
    note=NOTE,
    budgets="2048,8192",
    variants=VARIANTS,
    own_tables=OWN_TABLES,
)


def full_rows(run: str, settings: Sequence[str]) -> dict[str, Float[Tensor, "num_rows dim"]]:
    """The rows of full tables after one epoch."""
    own = ["embeddings.kind=tables", "embeddings.method=full", "train.epochs=1"]
    model: Any = train(load_config(run, [*settings, *own]), quiet=True).model
    return {
        name: table.lookup(torch.arange(table.spec.num_rows)).detach()
        for name, table in model.embeddings.tables.items()
    }


def one_cell(cell: Cell) -> Row:
    """Train a variant at a budget with a seed."""
    variant = VARIANTS[cell["variant"]]
    if variant.method.startswith("seeded"):
        rows = full_rows(cell["run"], [*cell["settings"], f"seed={cell['seed']}"])
        TABLES[variant.method] = seeded_table(rows, keep_codes=variant.method == "seeded-codes")
    return GRID.train_cell(cell)


if __name__ == "__main__":
    GRID.run(__doc__, one_cell)
