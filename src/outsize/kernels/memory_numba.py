"""Prefetching, for kernels that read rows of a large table in no order."""

from __future__ import annotations

from typing import Any, no_type_check

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_LINE_FLOATS = 16  # in a cache line of 64 bytes
_MOST_LINES = 8  # of a wide row; the hardware sees the pattern by then


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Start to load the cache line of element `index` of a contiguous array, counted flat."""
    signature = types.void(array, index)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type, index_type = signature.args
        view = context.make_array(array_type)(context, builder, arguments[0])
        place = context.cast(builder, arguments[1], index_type, types.intp)
        _prefetch(builder, builder.gep(view.data, [place]))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def prefetch_address(typing_context: Any, address: Any) -> Any:
    """Start to load the cache line at an address, which need not be valid."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _prefetch(builder, builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64), generate


def _prefetch(builder: Any, place: Any) -> None:
    address = builder.bitcast(place, ir.IntType(8).as_pointer())
    number = ir.IntType(32)
    function = builder.module.declare_intrinsic(
        "llvm.prefetch",
        [address.type],
        ir.FunctionType(ir.VoidType(), [address.type, number, number, number]),
    )
    builder.call(function, [address, number(0), number(3), number(1)])


@numba.njit(forceinline=True)
@no_type_check
def prefetch_row(rows, row, dim):
    """Prefetch a row of float32."""
    start = row * dim
    for j in range(0, min(dim, _MOST_LINES * _LINE_FLOATS), _LINE_FLOATS):
        prefetch(rows, start + j)


@numba.njit(forceinline=True)
@no_type_check
def prefetch_line(address, dim):
    """Prefetch `dim` float32 at an address."""
    for j in range(0, 4 * min(dim, _MOST_LINES * _LINE_FLOATS), 4 * _LINE_FLOATS):
        prefetch_address(address + j)
