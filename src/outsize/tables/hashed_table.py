"""Tables whose vectors are sums of stored rows that hash functions find, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from jaxtyping import Float, Int64
from torch import Tensor

from outsize.contracts import EmbeddingTable
from outsize.hashing import draw_hashes, hash_ids
from outsize.kernels.compositional.pointers import HashedPointers
from outsize.spec import Budget, TableSpec
from outsize.tables.columns import composed_columns, gather_columns
from outsize.tables.sizing import Cost, hash_bytes, largest_size
from outsize.tables.weights import fresh_weight


class HashedTable(EmbeddingTable):
    """A sum of terms; column j of a term is column j of the row that a hash of the id names.

    Args:
        spec: The table.
        sizes: Number of stored rows of each term.
        columns: Columns per vector.
        std: Standard deviation of the initial rows.
        seed: Seed of the hash functions and of the initial rows.
    """

    def __init__(
        self, spec: TableSpec, sizes: Sequence[int], columns: int, std: float, seed: int
    ) -> None:
        super().__init__(spec)
        self.num_buckets = sum(sizes)
        self.columns = columns
        self._sizes, self._first_rows = sizes, [0, *accumulate(sizes[:-1])]
        self.weight = fresh_weight(spec, self.num_buckets, spec.dim, std, seed)
        self.register_buffer("hashes", draw_hashes(len(sizes) * columns, seed))
        self.hashes: Tensor

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        functions = self.hashes.split(self.columns)
        sources = [HashedPointers(f, n) for f, n in zip(functions, self._sizes, strict=True)]
        vectors = composed_columns(self.weight, ids, sources, self._first_rows)
        if vectors is not None:
            return vectors
        first, *others = (
            gather_columns(self.weight, hash_ids(ids, functions[i], size) + self._first_rows[i])
            for i, size in enumerate(self._sizes)
        )
        return sum(others, first)


def most_buckets(
    method: str, spec: TableSpec, budget: Budget, columns: int, num_terms: int = 1
) -> int:
    """The most rows of a `HashedTable` within a budget."""

    def cost(num_buckets: int) -> Cost:
        return Cost(num_buckets * spec.dim, hash_bytes(num_terms * columns))

    return largest_size(method, spec, budget, cost, least=num_terms)
