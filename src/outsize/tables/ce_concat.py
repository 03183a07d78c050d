"""Compositional embeddings by concatenation ("CE concat" of "Clustering the Sketch", Figure 3).

    T[i] = [M₁[h₁(i)] | … | M_c[h_c(i)]]

Two ids share a vector only if all c hashes collide.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor

from outsize.contracts import EmbeddingTable
from outsize.hashing import draw_hashes, hash_ids
from outsize.kernels.compositional.pointers import HashedPointers
from outsize.spec import Budget, TableSpec
from outsize.tables.columns import columns_of, composed_columns, gather_columns
from outsize.tables.sizing import Cost, hash_bytes, largest_size
from outsize.tables.weights import fresh_weight


class CEConcatTable(EmbeddingTable):
    """Each column of a vector is looked up by its own hash function.

    The paper draws rows uniformly from ± dim^-½, which is the default scale of the spec.

    Args:
        spec: The table.
        num_buckets: Number of stored rows, k in the paper.
        columns: Columns per vector, c in the paper; 4 by default.
        seed: Seed of the hash functions and of the initial rows.
    """

    def __init__(
        self,
        spec: TableSpec,
        *,
        num_buckets: int,
        columns: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(spec)
        columns = columns_of(spec, columns)
        self.num_buckets = num_buckets
        std = spec.init.std_for(spec.dim)
        self.weight = fresh_weight(spec, num_buckets, spec.dim, std, seed)
        self.register_buffer("hashes", draw_hashes(columns, seed))
        self.hashes: Tensor

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> CEConcatTable:
        columns = columns_of(spec, options.get("columns"))

        def cost(num_buckets: int) -> Cost:
            return Cost(num_buckets * spec.dim, hash_bytes(columns))

        size = largest_size("ce-concat", spec, budget, cost)
        return cls(spec, num_buckets=size, seed=seed, **options)

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {"num_buckets": self.num_buckets, "columns": self.hashes.shape[0]}

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        hashed = HashedPointers(self.hashes, self.num_buckets)
        vectors = composed_columns(self.weight, ids, [hashed], [0])
        if vectors is not None:
            return vectors
        return gather_columns(self.weight, hash_ids(ids, self.hashes, self.num_buckets))
