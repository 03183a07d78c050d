"""The hashing trick (Weinberger et al. 2009): ids share the rows of a small table.

T[i] = M[h(i)]
"""

from __future__ import annotations

from typing import Any

from outsize.spec import Budget, TableSpec
from outsize.tables.hashed_table import HashedTable, most_buckets


class HashTable(HashedTable):
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
        std = (3 * num_buckets) ** -0.5 if papers_init else spec.init.std_for(spec.dim)
        super().__init__(spec, [num_buckets], 1, std, seed)

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> HashTable:
        size = most_buckets("hash", spec, budget, columns=1)
        return cls(spec, num_buckets=size, seed=seed, **options)

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {"num_buckets": self.num_buckets}
