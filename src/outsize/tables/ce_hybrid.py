"""Compositional embeddings with sums within columns ("CE hybrid" of "Clustering the Sketch").

    T[i] = [M₁[h₁(i)] + M'₁[h'₁(i)] | … | M_c[h_c(i)] + M'_c[h'_c(i)]]

This is CCE before its first clustering.
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


class CEHybridTable(EmbeddingTable):
    """Each column of a vector is the sum of two rows, each found by its own hash function.

    The paper draws rows uniformly from ± dim^-½. Here they are smaller by √2, so that sums have the
    scale of the spec.

    Args:
        spec: The table.
        num_buckets: Number of stored rows, half of them in each of the two tables.
        columns: Columns per vector, c in the paper; 4 by default.
        papers_init: Draw rows as in the paper.
        seed: Seed of the hash functions and of the initial rows.
    """

    def __init__(
        self,
        spec: TableSpec,
        *,
        num_buckets: int,
        columns: int | None = None,
        papers_init: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(spec)
        columns = columns_of(spec, columns)
        self.columns = columns
        self.num_first = num_buckets - num_buckets // 2
        self.num_second = num_buckets // 2
        std = (3 * spec.dim) ** -0.5 if papers_init else spec.init.std_for(spec.dim) / 2**0.5
        self.weight = fresh_weight(spec, num_buckets, spec.dim, std, seed)
        self.register_buffer("hashes", draw_hashes(2 * columns, seed))
        self.hashes: Tensor

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> CEHybridTable:
        columns = columns_of(spec, options.get("columns"))

        def cost(num_buckets: int) -> Cost:
            return Cost(num_buckets * spec.dim, hash_bytes(2 * columns))

        size = largest_size("ce-hybrid", spec, budget, cost, least=2)
        return cls(spec, num_buckets=size, seed=seed, **options)

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {"num_buckets": self.num_first + self.num_second, "columns": self.columns}

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        functions, sizes = self.hashes.split(self.columns), (self.num_first, self.num_second)
        sources = [HashedPointers(f, n) for f, n in zip(functions, sizes, strict=True)]
        vectors = composed_columns(self.weight, ids, sources, [0, self.num_first])
        if vectors is not None:
            return vectors
        first = hash_ids(ids, self.hashes[: self.columns], self.num_first)
        second = hash_ids(ids, self.hashes[self.columns :], self.num_second)
        return gather_columns(self.weight, first) + gather_columns(
            self.weight, second + self.num_first
        )
