"""How large a table may be: sizes are found by arithmetic, never by building a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from outsize.errors import ConfigError
from outsize.hashing import BYTES_PER_HASH
from outsize.spec import Budget, TableSpec


class Cost(NamedTuple):
    """What a table of some size would hold.

    Attributes:
        num_params: Trainable numbers.
        index_bytes: Bytes of everything else: hash functions, pointers.
    """

    num_params: int
    index_bytes: int = 0

    def num_bytes(self, spec: TableSpec) -> int:
        """All bytes, with numbers of the table's type."""
        return self.num_params * spec.dtype.itemsize + self.index_bytes


def hash_bytes(num_hashes: int) -> int:
    """Bytes of the coefficients of so many hash functions."""
    return num_hashes * BYTES_PER_HASH


def largest_size(
    method: str,
    spec: TableSpec,
    budget: Budget,
    cost: Callable[[int], Cost],
    *,
    least: int = 1,
    most: int | None = None,
) -> int:
    """The largest size from `least` to `most` whose cost a budget allows, by bisection.

    Args:
        method: Name of the method, for errors.
        spec: The table.
        budget: Its limit; a compressed table cannot do without one.
        cost: What a size costs; never less for a larger one.
        least: The smallest size that makes sense.
        most: The largest that does; by default as many as the table has rows.
    """
    what = f"table {spec.name!r}: the smallest {method} table"
    if not budget.is_set:
        raise ConfigError(
            f"table {spec.name!r}: a {method} table needs a budget: give max_params or max_bytes"
        )
    smallest = cost(least)
    budget.require(what, smallest.num_params, smallest.num_bytes(spec))
    low, high = least, max(least, spec.num_rows if most is None else most)
    while low < high:
        middle = (low + high + 1) // 2
        found = cost(middle)
        if budget.allows(found.num_params, found.num_bytes(spec)):
            low = middle
        else:
            high = middle - 1
    return low
