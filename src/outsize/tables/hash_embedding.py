"""Hash embeddings (Svenstrup, Hansen and Winther 2017): weighted sums of shared rows.

    T[i] = Σ_j p_j(i) · M[h_j(i)]

Ids that share rows still differ by their importance weights p(i), which are trained too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from outsize.contracts import EmbeddingTable
from outsize.errors import ConfigError
from outsize.hashing import draw_hashes, hash_ids
from outsize.spec import Budget, Init, TableSpec
from outsize.tables.sizing import Cost, hash_bytes, largest_size
from outsize.tables.weights import fresh_weight

_DEFAULT_HASHES = 2


class HashEmbeddingTable(EmbeddingTable):
    """`num_buckets` shared rows, and `num_importance` rows of importance weights.

    A budget is split evenly between the two; the rows get what the importance weights cannot use.
    Importance weights start at 1, so an initial vector is the sum of its rows.

    Args:
        spec: The table.
        num_buckets: Shared rows, B in the paper.
        num_importance: Rows of importance weights, K in the paper. If there are as many as the
            table has rows, each id has its own; otherwise ids share them by a hash.
        num_hashes: Shared rows per vector, k in the paper.
        seed: Seed of the hash functions and of the initial values.
        papers_init: Draw normal values as implementations of the paper do, with standard
            deviation 0.1 in the rows and 0.0005 in the weights, instead of at the scale of the
            spec.
    """

    def __init__(
        self,
        spec: TableSpec,
        *,
        num_buckets: int,
        num_importance: int,
        num_hashes: int = _DEFAULT_HASHES,
        seed: int = 0,
        papers_init: bool = False,
    ) -> None:
        super().__init__(spec)
        _require_hashes(spec, num_hashes)
        self.num_buckets = num_buckets
        self.num_importance = num_importance
        if papers_init:
            normal = replace(spec, init=Init("normal"))
            self.weight = fresh_weight(normal, num_buckets, spec.dim, 0.1, seed)
            self.importance = fresh_weight(
                normal, num_importance, num_hashes, 0.0005, seed, "importance"
            )
        else:
            std = spec.init.std_for(spec.dim) * num_hashes**-0.5
            self.weight = fresh_weight(spec, num_buckets, spec.dim, std, seed)
            self.importance = nn.Parameter(torch.ones(num_importance, num_hashes, dtype=spec.dtype))
        self.register_buffer("hashes", draw_hashes(num_hashes + 1, seed))
        self.hashes: Tensor

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> HashEmbeddingTable:
        num_hashes: int = options.get("num_hashes", _DEFAULT_HASHES)
        _require_hashes(spec, num_hashes)

        def half(num_buckets: int) -> int:
            return min(spec.num_rows, max(1, num_buckets * spec.dim // num_hashes))

        def cost(num_buckets: int, num_importance: int) -> Cost:
            num_params = num_buckets * spec.dim + num_importance * num_hashes
            return Cost(num_params, hash_bytes(num_hashes + 1))

        buckets = largest_size("hash-embedding", spec, budget, lambda size: cost(size, half(size)))
        importance = largest_size(
            "hash-embedding",
            spec,
            budget,
            lambda size: cost(buckets, size),
            least=half(buckets),
        )
        return cls(spec, num_buckets=buckets, num_importance=importance, seed=seed, **options)

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {
            "num_buckets": self.num_buckets,
            "num_importance": self.num_importance,
            "num_hashes": self.hashes.shape[0] - 1,
        }

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        buckets = hash_ids(ids, self.hashes[:-1], self.num_buckets)
        found = self.weight.index_select(0, buckets.T.flatten())
        rows = found.view(buckets.shape[1], *ids.shape, self.spec.dim)
        importance = self.importance.index_select(0, self._importance_rows(ids))
        vectors = importance[:, :1] * rows[0]
        for j, row in enumerate(rows[1:], start=1):
            vectors = vectors + importance[:, j, None] * row
        return vectors

    def _importance_rows(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        if self.num_importance == self.spec.num_rows:
            return ids
        return hash_ids(ids, self.hashes[-1:], self.num_importance).squeeze(1)


def _require_hashes(spec: TableSpec, num_hashes: int) -> None:
    if num_hashes < 1:
        raise ConfigError(f"table {spec.name!r}: num_hashes must be >= 1, but got {num_hashes}")
