"""The largest size of a table within a budget, found without building tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from outsize.errors import ConfigError
from outsize.hashing import BYTES_PER_HASH
from outsize.spec import Budget, TableSpec


class Cost(NamedTuple):
    """The cost of a table of some size.

    Attributes:
        num_params: Number of trainable parameters.
        index_bytes: Bytes of everything else: hash functions and pointers.
    """

    num_params: int
    index_bytes: int = 0

    def num_bytes(self, spec: TableSpec) -> int:
        """Total bytes, with parameters in the table's dtype."""
        return self.num_params * spec.dtype.itemsize + self.index_bytes


def hash_bytes(num_hashes: int) -> int:
    """Bytes of the coefficients of `num_hashes` hash functions."""
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
    """The largest size from `least` to `most` whose cost is within a budget, by bisection.

    Args:
        method: Name of the method, for error messages.
        spec: The table.
        budget: Its limit, which a compressed table requires.
        cost: The cost of a size; must not decrease with the size.
        least: The smallest valid size.
        most: The largest useful size; by default the number of rows of the table.
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
