"""Hash embeddings whose hashes are replaced by residual vector quantization.

Appendix A of "Clustering the Sketch" tried this beside CCE, which replaces the hashes of
compositional embeddings by product quantization:

    T[i] = p₁(i) · M[h₁(i)] + p₂(i) · M[h₂(i)]

Clustering makes h₁ the assignment of T to half of the rows, and h₂ that of what is left to the
other half. A probe gives it the rows that T is to be.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.optim import Optimizer

from benchmarks.cce.cce_variants import rows_of_blocks
from outsize.clustering import nearest
from outsize.contracts import PlannedRecluster
from outsize.hashing import hash_ids
from outsize.spec import TableSpec
from outsize.tables import HashEmbeddingTable
from outsize.tables.block_clustering import BlockClustering
from outsize.tables.clustered_table import ClusteredTable
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
    can_probe = True

    def __init__(
        self, spec: TableSpec, *, num_buckets: int, num_importance: int, seed: int = 0
    ) -> None:
        super().__init__(spec, num_buckets=num_buckets, num_importance=num_importance, seed=seed)
        ids = torch.arange(spec.num_rows)
        self.register_buffer("pointers", hash_ids(ids, self.hashes[:-1], num_buckets))
        self.pointers: Tensor
        self.seed = seed
        self._probed = torch.empty(0)

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        rows = self.weight[self.pointers[ids]]
        importance = self.importance[self._importance_rows(ids)]
        return (importance.unsqueeze(2) * rows).sum(dim=1)

    def plan_recluster(  # noqa: D102
        self,
        optimizer: Optimizer | None = None,
        counts: Int64[Tensor, " num_rows"] | None = None,
        *,
        tolerance: float = 0.0,
        progress: bool = False,
    ) -> PlannedRecluster:
        with torch.no_grad():
            rows = self.lookup(torch.arange(self.spec.num_rows)).float()
        return self._plan(rows, optimizer, counts, tolerance)

    def renew_version(self) -> None:
        """Do nothing: ids are not encoded."""

    def num_main_after(self, helper: bool) -> int:
        """Rows of codes after a clustering; there is no helper."""
        return self.num_buckets

    def cluster_blocks(
        self,
        counts: Int64[Tensor, " num_rows"] | None = None,
        *,
        blocks: int,
        helper: bool = True,
        tolerance: float = 0.0,
    ) -> BlockClustering:
        """Begin to collect rows that arrive block by block."""
        clustering = BlockClustering(
            self.spec, blocks, 1, self.pointers[:, :1], lambda rows: rows.unsqueeze(0),
            counts=counts, device=self.weight.device, seed=self.seed, tolerance=tolerance,
        )  # fmt: skip
        self._probed = rows_of_blocks(self, clustering)
        return clustering

    def plan_blocks(
        self, clustering: BlockClustering, optimizer: Optimizer | None = None
    ) -> PlannedRecluster:
        """Plan the quantization of the rows of all blocks."""
        return self._plan(self._probed, optimizer, clustering.counts)

    def _plan(
        self,
        rows: Float[Tensor, "num_rows dim"],
        optimizer: Optimizer | None,
        counts: Int64[Tensor, " num_rows"] | None,
        tolerance: float = 0.0,
    ) -> PlannedRecluster:
        plan = plan_recluster(
            self, self.weight, lambda: self._quantized(rows, counts, tolerance), self.num_buckets,
            optimizer, pooled=True,
        )  # fmt: skip

        def write() -> None:
            plan.write()
            if optimizer is not None:
                reset_moments(optimizer, self.importance)

        return replace(plan, write=write)

    def recluster(self, *arguments: Any, **options: Any) -> Any:  # noqa: D102
        return self.plan_recluster(*arguments, **options).apply()

    @torch.no_grad()
    def _quantized(
        self,
        rest: Float[Tensor, "num_rows dim"],
        counts: Int64[Tensor, " num_rows"] | None,
        tolerance: float,
    ) -> dict[str, Tensor]:
        """New rows, pointers and importance weights of 1."""
        half = self.num_buckets // 2
        sizes = (self.num_buckets - half, half)
        codes: list[Tensor] = []
        pointers: list[Tensor] = []
        for number, size in enumerate(sizes):
            fitted = fit_codes(
                self.spec, _points_in(rest), size, counts,
                device=rest.device, seed=self.seed + number, iterations=ITERATIONS, progress=False,
                tolerance=tolerance,
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


ClusteredTable.register(ResidualQuantizedTable)  # what a probe looks for


def _points_in(rows: Float[Tensor, "num_rows dim"]) -> PointsOf:
    """The rows of ids, as one group."""
    return lambda ids: rows[ids].unsqueeze(0)
