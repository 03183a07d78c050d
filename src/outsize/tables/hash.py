"""The hashing trick (Weinberger et al. 2009): ids share the rows of a small table.

T[i] = M[h(i)]
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor

from outsize.contracts import EmbeddingTable
from outsize.hashing import draw_hashes, hash_ids
from outsize.kernels.compositional.pointers import HashedPointers
from outsize.spec import Budget, TableSpec
from outsize.tables.columns import composed_columns
from outsize.tables.sizing import Cost, hash_bytes, largest_size
from outsize.tables.weights import fresh_weight


class HashTable(EmbeddingTable):
    """`num_buckets` rows; ids in the same bucket share a vector.

    Args:
        spec: The table.
        num_buckets: Number of stored rows.
        seed: Seed of the hash function and of the initial rows.
        papers_init: Draw rows as DLRM does, uniformly from ± num_buckets^-½, instead of at the
            scale of the spec.
    """

    def __init__(
        self, spec: TableSpec, *, num_buckets: int, seed: int = 0, papers_init: bool = False
    ) -> None:
        super().__init__(spec)
        self.num_buckets = num_buckets
        std = (3 * num_buckets) ** -0.5 if papers_init else spec.init.std_for(spec.dim)
        self.weight = fresh_weight(spec, num_buckets, spec.dim, std, seed)
        self.register_buffer("hashes", draw_hashes(1, seed))
        self.hashes: Tensor

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> HashTable:
        def cost(num_buckets: int) -> Cost:
            return Cost(num_buckets * spec.dim, hash_bytes(1))

        size = largest_size("hash", spec, budget, cost)
        return cls(spec, num_buckets=size, seed=seed, **options)

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {"num_buckets": self.num_buckets}

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        hashed = HashedPointers(self.hashes, self.num_buckets)
        vectors = composed_columns(self.weight, ids, [hashed], [0])
        if vectors is not None:
            return vectors
        buckets = hash_ids(ids, self.hashes, self.num_buckets).squeeze(1)
        return self.weight.index_select(0, buckets)
