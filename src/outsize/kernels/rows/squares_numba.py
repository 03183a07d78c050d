"""What the rules of `updates` sum over batches besides gradients, for one line at an address."""

from __future__ import annotations

from typing import no_type_check

import numba

from outsize.kernels.rows.rule_numbers_numba import MEAN_SQUARES
from outsize.kernels.rows.rules_numba import mean_square
from outsize.kernels.vectors_numba import load, load_float, multiply, store, store_float


@numba.njit(forceinline=True)
@no_type_check
def put_squares(line, target, dim, kind):
    """Write the squares of a line, or their mean."""
    if kind == MEAN_SQUARES:
        store_float(target, mean_square(line, dim))
        return
    whole = dim - dim % 8
    for j in range(0, 4 * whole, 32):
        values = load(line + j)
        store(target + j, multiply(values, values))
    for j in range(4 * whole, 4 * dim, 4):
        number = load_float(line + j)
        store_float(target + j, number * number)
