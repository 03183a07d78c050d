"""Compositional embeddings by concatenation ("CE concat" of "Clustering the Sketch", Figure 3).

    T[i] = [M₁[h₁(i)] | … | M_c[h_c(i)]]

Two ids share a vector only if all c hashes collide.
"""

from __future__ import annotations

from typing import Any

from outsize.spec import Budget, TableSpec
from outsize.tables.columns import columns_of
from outsize.tables.hashed_table import HashedTable, most_buckets


class CEConcatTable(HashedTable):
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
        std = spec.init.std_for(spec.dim)
        super().__init__(spec, [num_buckets], columns_of(spec, columns), std, seed)

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> CEConcatTable:
        columns = columns_of(spec, options.get("columns"))
        size = most_buckets("ce-concat", spec, budget, columns)
        return cls(spec, num_buckets=size, seed=seed, **options)

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {"num_buckets": self.num_buckets, "columns": self.columns}
