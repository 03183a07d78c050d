"""Full tables: one row per id. The baseline for all other methods."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from outsize.contracts import EmbeddingTable
from outsize.initialization import fill_initial_rows
from outsize.spec import Budget, TableSpec


class FullTable(EmbeddingTable):
    """A table of `num_rows × dim` parameters, like `nn.Embedding`.

    Args:
        spec: The table.
        seed: Seed of the initial rows.
        sparse: Compute sparse gradients, for torch's SGD, Adagrad and SparseAdam. For a table too
            large for dense gradients, prefer a store.
    """

    def __init__(self, spec: TableSpec, *, seed: int = 0, sparse: bool = False) -> None:
        super().__init__(spec)
        self.sparse = sparse
        self.weight = nn.Parameter(torch.empty(spec.num_rows, spec.dim, dtype=spec.dtype))
        fill_initial_rows(self.weight, spec, seed)

    @classmethod
    def of_rows(cls, spec: TableSpec, rows: Float[Tensor, "num_rows dim"]) -> FullTable:
        """A table of given rows, without a copy of them."""
        with torch.device("meta"):
            table = cls(spec)
        table.load_state_dict({"weight": rows}, assign=True)
        return table

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> FullTable:
        num_params = spec.num_rows * spec.dim
        what = f"table {spec.name!r}: a full table"
        budget.require(what, num_params, num_params * spec.dtype.itemsize)
        return cls(spec, seed=seed, **options)

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {}

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        if self.sparse:
            return F.embedding(ids, self.weight, sparse=True)
        return self.weight.index_select(0, ids)  # its backward is five times as fast on a CPU

    def _fit(
        self,
        rows: Float[Tensor, "num_rows dim"],
        counts: Int64[Tensor, " num_rows"] | None,
        progress: bool,
    ) -> None:
        self.weight.copy_(rows)
