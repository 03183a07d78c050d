"""Low-rank tables: narrow rows, times one matrix that all ids share.

T[i] = U[i] · W
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.contracts import EmbeddingTable
from outsize.spec import Budget, TableSpec
from outsize.tables.factors import fresh_factor
from outsize.tables.sizing import Cost, largest_size


class LowRankTable(EmbeddingTable):
    """A row of `rank` numbers per id, times a `(rank, dim)` matrix.

    Each id has its own row, so a budget below `num_rows + dim` parameters is refused. Rows are
    initialized at the scale of the spec, and the matrix so that it preserves that scale.

    Args:
        spec: The table.
        rank: Width of the rows.
        seed: Seed of the initial rows and of the matrix.
    """

    def __init__(self, spec: TableSpec, *, rank: int, seed: int = 0) -> None:
        super().__init__(spec)
        std = spec.init.std_for(spec.dim)
        self.weight = fresh_factor(spec, spec.num_rows, rank, std, seed, "weight")
        self.widen = fresh_factor(spec, rank, spec.dim, rank**-0.5, seed, "widen")

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> LowRankTable:
        def cost(rank: int) -> Cost:
            return Cost(rank * (spec.num_rows + spec.dim))

        most = min(spec.num_rows, spec.dim)
        rank = largest_size("low-rank", spec, budget, cost, most=most)
        return cls(spec, rank=rank, seed=seed, **options)

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {"rank": self.weight.shape[1]}

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        return self.weight.index_select(0, ids) @ self.widen

    def _fit(
        self,
        rows: Float[Tensor, "num_rows dim"],
        counts: Int64[Tensor, " num_rows"] | None,
        progress: bool,
    ) -> None:
        """The best approximation of this rank: rows projected on their principal directions."""
        exact = rows.double()
        weighted = exact if counts is None else exact * counts.to(exact).unsqueeze(1)
        rank = self.widen.shape[0]
        directions = torch.linalg.eigh(exact.T @ weighted).eigenvectors[:, -rank:]
        scale = (self.spec.dim / rank) ** 0.5  # as initialized: the matrix preserves the scale
        self.weight.copy_(exact @ directions / scale)
        self.widen.copy_(directions.T * scale)
