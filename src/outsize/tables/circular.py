"""Circular clustering ("Clustering the Sketch", Appendix A): the variant that collapses.

    T[i] = [M₁[h₁(i)] | … | M_c[h_c(i)]]

as in CE concat, but `recluster` sets h_j by clustering ids on all columns *except* j. Two columns
are then clustered on nearly the same data, their pointers become similar, and the table ends as
little more than the hashing trick. It is included to reproduce that result of the paper, and to
test that the diagnostics detect it.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.optim import Optimizer

from outsize.contracts import EmbeddingTable, PlannedRecluster
from outsize.errors import ConfigError
from outsize.hashing import derive_seed, draw_hashes
from outsize.kernels.compositional.pointers import StoredPointers
from outsize.spec import Budget, TableSpec
from outsize.tables.columns import (
    columns_of,
    composed_columns,
    gather_columns,
    stack_columns,
    unstack_columns,
)
from outsize.tables.pointers import hashed_pointers, pointer_type, unpack
from outsize.tables.reclustering import (
    ITERATIONS,
    fit_codes,
    nearest_pointers,
    plan_recluster,
)
from outsize.tables.sizing import Cost, largest_size
from outsize.tables.weights import fresh_weight


class CircularTable(EmbeddingTable):
    """CE concat in which each column is clustered by the other columns.

    Args:
        spec: The table.
        num_buckets: Number of stored rows, k in the paper.
        columns: Columns per vector, at least 2; 4 by default.
        seed: Seed of the hashes, the initial codes and the clusterings.
    """

    can_recluster = True

    def __init__(
        self, spec: TableSpec, *, num_buckets: int, columns: int | None = None, seed: int = 0
    ) -> None:
        super().__init__(spec)
        columns = columns_of(spec, columns)
        if columns < 2:
            raise ConfigError(
                f"table {spec.name!r}: circular clustering needs 2 columns or more, as each is "
                f"clustered by the others, but got {columns}"
            )
        self.columns = columns
        self.num_buckets = num_buckets
        self.seed = seed
        std = spec.init.std_for(spec.dim)
        self.weight = fresh_weight(spec, num_buckets, spec.dim, std, seed)
        hashes = draw_hashes(columns, seed)
        self.register_buffer("pointers", hashed_pointers(spec.num_rows, hashes, num_buckets))
        self.register_buffer("num_clusterings", torch.zeros(1, dtype=torch.int64))
        self.pointers: Tensor
        self.num_clusterings: Tensor

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> CircularTable:
        columns = columns_of(spec, options.get("columns"))

        def cost(num_buckets: int) -> Cost:
            pointers = spec.num_rows * columns * pointer_type(num_buckets).itemsize
            return Cost(num_buckets * spec.dim, pointers + 8)

        size = largest_size("circular", spec, budget, cost)
        return cls(spec, num_buckets=size, seed=seed, **options)

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {"num_buckets": self.num_buckets, "columns": self.columns, "seed": self.seed}

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        vectors = composed_columns(self.weight, ids, [StoredPointers(self.pointers)], [0])
        if vectors is not None:
            return vectors
        return gather_columns(self.weight, unpack(self.pointers[ids]))

    def plan_recluster(  # noqa: D102
        self,
        optimizer: Optimizer | None = None,
        counts: Int64[Tensor, " num_rows"] | None = None,
        *,
        iterations: int = ITERATIONS,
        tolerance: float = 0.0,
        progress: bool = False,
    ) -> PlannedRecluster:
        def rewrite() -> dict[str, Tensor]:
            seed = derive_seed(self.seed, "recluster", int(self.num_clusterings))
            fitted = fit_codes(
                self.spec,
                self._others,
                self.num_buckets,
                counts,
                device=self.weight.device,
                seed=seed,
                iterations=iterations,
                progress=progress,
                tolerance=tolerance,
            )
            pointers = nearest_pointers(self._others, fitted.codes, self.pointers)
            means = self._means(fitted.ids, fitted.weights, unpack(pointers[fitted.ids]))
            return {
                "weight": means.to(self.weight),
                "pointers": pointers,
                "num_clusterings": self.num_clusterings + 1,
            }

        return plan_recluster(self, self.weight, rewrite, self.num_buckets, optimizer)

    def _others(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "columns n width"]:
        """For each column, the ids' vectors without that column."""
        stacked = stack_columns(self.lookup(ids).float(), self.columns)
        return torch.stack(
            [
                torch.cat([stacked[k] for k in range(self.columns) if k != j], dim=1)
                for j in range(self.columns)
            ]
        )

    def _means(
        self,
        ids: Int64[Tensor, " n"],
        weights: Float[Tensor, " n"],
        pointers: Int64[Tensor, "n columns"],
    ) -> Float[Tensor, "rows dim"]:
        """New codes: the mean column of the ids that point to each, or zero if no id does."""
        stacked = stack_columns(self.lookup(ids).float(), self.columns)
        codes = stacked.new_zeros(self.columns, self.num_buckets, stacked.shape[2])
        for j in range(self.columns):
            codes[j].index_add_(0, pointers[:, j], stacked[j] * weights.unsqueeze(1))
            mass = weights.new_zeros(self.num_buckets).index_add_(0, pointers[:, j], weights)
            codes[j] /= mass.clamp(min=1e-30).unsqueeze(1)
        return unstack_columns(codes, self.spec.dim)
