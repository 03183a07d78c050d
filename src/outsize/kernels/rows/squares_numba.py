"""What the rules of `updates` sum over batches besides gradients, for one line at an address."""

from __future__ import annotations

from typing import no_type_check

import numba

from outsize.kernels.lines_numba import of_lines
from outsize.kernels.rows.rule_numbers_numba import MEAN_SQUARES
from outsize.kernels.rows.rules_numba import mean_square
from outsize.kernels.vectors_numba import multiply, store


@numba.njit(forceinline=True)
@no_type_check
def put_squares(line, target, dim, kind):
    """Write the squares of a line, or their mean."""
    if kind == MEAN_SQUARES:
        store(target, mean_square(line, dim))
    else:
        _put_squares(line, target, dim)


@of_lines
@no_type_check
def _put_squares(values, target, j):
    store(target + j, multiply(values, values))
