"""Hash embeddings whose hashes are replaced by residual vector quantization.

Appendix A of "Clustering the Sketch" tried this beside CCE, which replaces the hashes of
compositional embeddings by product quantization:

    T[i] = p₁(i) · M[h₁(i)] + p₂(i) · M[h₂(i)]

Clustering makes h₁ the assignment of T to half of the rows, and h₂ that of what is left to the
other half.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.optim import Optimizer

from outsize.clustering import nearest
from outsize.contracts import PlannedRecluster
from outsize.hashing import hash_ids
from outsize.spec import TableSpec
from outsize.tables import HashEmbeddingTable
from outsize.tables.moments import reset_moments
from outsize.tables.reclustering import ITERATIONS, PointsOf, fit_codes, plan_recluster


class ResidualQuantizedTable(HashEmbeddingTable):
    """Hash embeddings with pointers that clustering finds; see the module docstring.

    Args:
        spec: The table.
        num_buckets: Shared rows; half of them for each pointer after a clustering.
        num_importance: Rows of importance weights, as in `HashEmbeddingTable`.
        seed: Seed of the hashes, the initial values and the clusterings.
    """

    can_recluster = True

    def __init__(
        self, spec: TableSpec, *, num_buckets: int, num_importance: int, seed: int = 0
    ) -> None:
        super().__init__(spec, num_buckets=num_buckets, num_importance=num_importance, seed=seed)
        ids = torch.arange(spec.num_rows)
        self.register_buffer("pointers", hash_ids(ids, self.hashes[:-1], num_buckets))
        self.pointers: Tensor
        self.seed = seed

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        rows = self.weight[self.pointers[ids]]
        importance = self.importance[self._importance_rows(ids)]
        return (importance.unsqueeze(2) * rows).sum(dim=1)

    def plan_recluster(  # noqa: D102
        self,
        optimizer: Optimizer | None = None,
        counts: Int64[Tensor, " num_rows"] | None = None,
        *,
        progress: bool = False,
    ) -> PlannedRecluster:
        plan = plan_recluster(
            self, self.weight, lambda: self._quantized(counts), self.num_buckets, optimizer,
            pooled=True,
        )  # fmt: skip

        def write() -> None:
            plan.write()
            if optimizer is not None:
                reset_moments(optimizer, self.importance)

        return replace(plan, write=write)

    def recluster(self, *arguments: Any, **options: Any) -> Any:  # noqa: D102
        return self.plan_recluster(*arguments, **options).apply()

    @torch.no_grad()
    def _quantized(self, counts: Int64[Tensor, " num_rows"] | None) -> dict[str, Tensor]:
        """New rows, pointers and importance weights of 1."""
        rest = self.lookup(torch.arange(self.spec.num_rows)).float()
        half = self.num_buckets // 2
        sizes = (self.num_buckets - half, half)
        codes: list[Tensor] = []
        pointers: list[Tensor] = []
        for number, size in enumerate(sizes):
            fitted = fit_codes(
                self.spec, _points_in(rest), size, counts,
                device=rest.device, seed=self.seed + number, iterations=ITERATIONS, progress=False,
            )  # fmt: skip
            found = nearest(rest.unsqueeze(0), fitted.codes).flatten()
            rest = rest - fitted.codes[0][found]
            codes.append(fitted.codes[0])
            pointers.append(found + sum(sizes[:number]))
        return {
            "weight": torch.cat(codes),
            "pointers": torch.stack(pointers, dim=1),
            "importance": torch.ones_like(self.importance),
        }


def _points_in(rows: Float[Tensor, "num_rows dim"]) -> PointsOf:
    """The rows of ids, as one group."""
    return lambda ids: rows[ids].unsqueeze(0)
