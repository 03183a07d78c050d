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
        address = builder.bitcast(builder.gep(view.data, [place]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch",
            [address.type],
            ir.FunctionType(ir.VoidType(), [address.type, number, number, number]),
        )
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return signature, generate


@numba.njit(forceinline=True)
@no_type_check
def prefetch_row(rows, row, dim):
    """Prefetch a row of float32."""
    start = row * dim
    for j in range(0, min(dim, _MOST_LINES * _LINE_FLOATS), _LINE_FLOATS):
        prefetch(rows, start + j)
