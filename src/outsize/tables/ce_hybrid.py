"""Compositional embeddings with sums within columns ("CE hybrid" of "Clustering the Sketch").

    T[i] = [M₁[h₁(i)] + M'₁[h'₁(i)] | … | M_c[h_c(i)] + M'_c[h'_c(i)]]

This is CCE before its first clustering.
"""

from __future__ import annotations

from typing import Any

from outsize.spec import Budget, TableSpec
from outsize.tables.columns import columns_of
from outsize.tables.hashed_table import HashedTable, most_buckets


class CEHybridTable(HashedTable):
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
        halves = (num_buckets - num_buckets // 2, num_buckets // 2)
        std = (3 * spec.dim) ** -0.5 if papers_init else spec.init.std_for(spec.dim) / 2**0.5
        super().__init__(spec, halves, columns_of(spec, columns), std, seed)

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> CEHybridTable:
        columns = columns_of(spec, options.get("columns"))
        size = most_buckets("ce-hybrid", spec, budget, columns, num_terms=2)
        return cls(spec, num_buckets=size, seed=seed, **options)

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {"num_buckets": self.num_buckets, "columns": self.columns}
