"""Arrays at addresses, for kernels that are given many: an address takes a fraction of the time.

The caller keeps the memory. References of these arrays are not counted.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numba
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@numba.njit(forceinline=True)
@no_type_check
def int64s_at(address, num):
    """A vector of int64."""
    return carray(_pointer(address), (num,), np.int64)


@numba.njit(forceinline=True)
@no_type_check
def int32s_at(address, num):
    """A vector of int32."""
    return carray(_pointer(address), (num,), np.int32)


@numba.njit(forceinline=True)
@no_type_check
def flags_at(address, num):
    """A vector of booleans."""
    return carray(_pointer(address), (num,), np.bool_)
