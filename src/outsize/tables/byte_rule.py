"""How a CCE table spends a budget: rows of codes, columns, bits of a pointer, slots for pointers.

Among all shapes within the budget, the one is taken whose vectors are expected to be closest to
those of a full table. Pointers of b bits per id leave about 2^(−2b / d) of the variance of vectors,
where d is their effective dimension; an id without a slot of its own keeps all of it. How much of
the data a share s of the ids makes up is not known when a table is built, and taken as √s: between
ids that occur alike (s) and ids that follow Zipf's law (nearly all). Rows get a fifth of the
budget or more, for they are what is trained: the errors of fewer would be those of their training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from outsize.errors import ConfigError
from outsize.spec import Budget, TableSpec
from outsize.tables.bit_packing import bits_for, packed_bytes
from outsize.tables.columns import columns_of
from outsize.tables.composed_table import is_shared
from outsize.tables.id_slots import map_bytes
from outsize.tables.sizing import Cost, hash_bytes

_COLUMNS = (1, 2, 4, 8, 16)
_MOST_BITS = 24
_EFFECTIVE_DIM = 8
_PER_SHARED_SLOT = 16
_ROW_SHARE = 5  # rows get one of as many parts of a budget, or more
_DIGITS = 3  # of an expected error; beyond them fewer columns count for more


@dataclass(frozen=True)
class Shape:
    """The sizes of a packed table.

    Attributes:
        num_buckets: Rows of codes and helper together.
        num_slots: Slots for pointers.
        columns: Columns per vector.
        pool: Columns that share a pool of codes.
    """

    num_buckets: int
    num_slots: int
    columns: int
    pool: int

    def cost(self, spec: TableSpec) -> Cost:
        """Parameters and bytes of the table."""
        bits = bits_for(self.num_buckets * self.pool)
        index = packed_bytes(self.num_slots * self.columns, bits) + hash_bytes(self.columns) + 24
        if self.num_slots < spec.num_rows:
            own = self.num_slots - num_shared_slots(self.num_slots, spec.num_rows)
            index += map_bytes(own, spec.num_rows)
        return Cost(self.num_buckets * spec.dim, index)

    def expected_error(self, spec: TableSpec) -> float:
        """Share of the variance of vectors that this shape is expected to lose, 0 to 1."""
        own = self.num_slots - num_shared_slots(self.num_slots, spec.num_rows)
        covered = math.sqrt(own / spec.num_rows)
        bits = self.columns * bits_for(self.num_buckets * self.pool)
        kept = math.exp2(-2 * bits / min(spec.dim, _EFFECTIVE_DIM))
        return covered * kept + 1 - covered


def num_shared_slots(num_slots: int, num_rows: int) -> int:
    """Slots for the ids that have none of their own: one of 16, if there are fewer than ids."""
    return 0 if num_slots >= num_rows else max(1, num_slots // _PER_SHARED_SLOT)


def largest_shape(
    spec: TableSpec, budget: Budget, columns: int | None, shared: bool | None
) -> Shape:
    """The shape within a budget that is expected to lose least.

    With a budget in parameters, every id has a slot, and columns are as asked or 4.

    Args:
        spec: The table.
        budget: Its limit.
        columns: Columns per vector; by default chosen.
        shared: Whether columns share codes; by default where they are equally wide.
    """
    if not budget.is_set:
        raise ConfigError(
            f"table {spec.name!r}: a cce table needs a budget: give max_params or max_bytes"
        )
    if columns is not None or budget.max_bytes is None:
        widths = [columns_of(spec, columns)]
    else:
        widths = [c for c in _COLUMNS if c <= spec.dim and not (shared and spec.dim % c)]
    pools = [(c, pool) for c in widths for pool in _pools(spec, c, shared, budget)]
    shapes = [shape for c, pool in pools for shape in _shapes(spec, budget, c, pool)]
    if not shapes:
        every = (_least(spec, budget, c, pool).cost(spec) for c, pool in pools)
        least = min(every, key=lambda cost: cost.num_bytes(spec))
        what = f"table {spec.name!r}: the smallest cce table"
        budget.require(what, least.num_params, least.num_bytes(spec))
    return min(shapes, key=lambda shape: _order(shape, spec, budget))


def _pools(spec: TableSpec, columns: int, shared: bool | None, budget: Budget) -> list[int]:
    """The numbers of columns that may share a pool of codes."""
    default = columns if is_shared(spec, columns, shared) else 1
    if shared is not None or budget.max_bytes is None:
        return [default]
    return sorted({1, default})


def _order(shape: Shape, spec: TableSpec, budget: Budget) -> tuple[float, ...]:
    """Less is better: of nearly equal error the fewest columns, then the most rows."""
    row_bytes = shape.num_buckets * spec.dim * spec.dtype.itemsize
    few_rows = budget.max_bytes is not None and _ROW_SHARE * row_bytes < budget.max_bytes
    error = round(shape.expected_error(spec), _DIGITS)
    return few_rows, error, shape.columns, -shape.num_buckets, -shape.num_slots


def _least(spec: TableSpec, budget: Budget, columns: int, pool: int) -> Shape:
    slots = spec.num_rows if budget.max_bytes is None else min(2, spec.num_rows)
    return Shape(2, slots, columns, pool)


def _shapes(spec: TableSpec, budget: Budget, columns: int, pool: int) -> Iterator[Shape]:
    """For each number of bits, the largest shape with all ids, and the one with most slots."""

    def fits(shape: Shape) -> bool:
        cost = shape.cost(spec)
        return budget.allows(cost.num_params, cost.num_bytes(spec))

    most_rows = max(2, spec.num_rows)
    for bits in range(1, _MOST_BITS + 1):
        low = max(2, (1 << (bits - 1)) // pool + 1)
        high = min(most_rows, (1 << bits) // pool)
        if high < low:
            continue
        all_slots = _most(low, high, lambda n: fits(Shape(n, spec.num_rows, columns, pool)))
        if all_slots is not None:
            yield Shape(all_slots, spec.num_rows, columns, pool)
        elif budget.max_bytes is not None:
            yield from _partial(Shape(high, spec.num_rows - 1, columns, pool), fits)


def _partial(shape: Shape, fits: Callable[[Shape], bool]) -> Iterator[Shape]:
    """A shape with as many slots as fit, if any do."""
    slots = _most(2, shape.num_slots, lambda n: fits(replace(shape, num_slots=n)))
    if slots is not None:
        yield replace(shape, num_slots=slots)


def _most(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """The largest number that fits, by bisection; `None` if the smallest does not."""
    if high < low or not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
