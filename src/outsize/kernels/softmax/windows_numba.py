"""Products of queries with windows of neighbouring items."""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import float32

from outsize.kernels.compiled import kernel


@numba.njit(forceinline=True, fastmath={"reassoc", "contract"})
@no_type_check
def _dot(query, vector):
    total = float32(0.0)
    for k in range(len(query)):
        total += query[k] * float32(vector[k])
    return total


@numba.njit(forceinline=True)
@no_type_check
def _multiply(part, parts, queries, lines, vectors, starts, out):
    n, width = out.shape
    for i in range(n * part // parts, n * (part + 1) // parts):
        query = queries[lines[i]]
        for j in range(width):
            out[i, j] = _dot(query, vectors[starts[i] + j])


@kernel(
    "void(int64, int64, float32[:, ::1], int64[::1], float32[:, ::1], int64[::1], float32[:, ::1])"
)
@no_type_check
def multiply_floats(part, parts, queries, lines, vectors, starts, out):
    """Write out[i, j] = queries[lines[i]] · vectors[starts[i] + j]."""
    _multiply(part, parts, queries, lines, vectors, starts, out)


@kernel(
    "void(int64, int64, float32[:, ::1], int64[::1], int8[:, ::1], int64[::1], float32[:, ::1])"
)
@no_type_check
def multiply_bytes(part, parts, queries, lines, vectors, starts, out):
    """`multiply_floats` for int8 vectors."""
    _multiply(part, parts, queries, lines, vectors, starts, out)
