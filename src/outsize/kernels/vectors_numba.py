"""Eight float32 in one register, for kernels that work on short rows.

A loop over the elements of a short row costs more than the work in it: the compiler adds checks for
overlapping memory and a remainder to every row. These vectors are those of LLVM, so every processor
has them, in one register or in several; each element is rounded as a single number would be.

Rows are read and written by their addresses: `address_of(rows) + 4 * (row * dim + column)`. Pass
addresses, not arrays, to functions that are called per row: numba counts the references of an array
at every call, by atomic operations that take longer than a row does.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

LANES = 8
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_ALIGNMENT = 4  # bytes, of a float32: rows may start anywhere


class Vector(types.Type):  # type: ignore[misc]
    """The type of eight float32."""

    def __init__(self) -> None:
        super().__init__(name="float32x8")


vector = Vector()


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


@intrinsic
def address_of(typing_context: Any, array: Any) -> Any:
    """The address of the first element of a contiguous array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), generate


def _load(kind: Any, result: Any) -> Any:
    def typed(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = builder.inttoptr(arguments[0], kind.as_pointer())
            return builder.load(place, align=_ALIGNMENT)

        return result(types.int64), generate

    return intrinsic(typed)


def _store(kind: Any, value: Any) -> Any:
    def typed(typing_context: Any, address: Any, given: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = builder.inttoptr(arguments[0], kind.as_pointer())
            builder.store(arguments[1], place, align=_ALIGNMENT)
            return context.get_dummy_value()

        return types.void(types.int64, value), generate

    return intrinsic(typed)


load, store = _load(_VECTOR, vector), _store(_VECTOR, vector)
load_float = _load(ir.FloatType(), types.float32)
store_float = _store(ir.FloatType(), types.float32)
load_int32 = _load(ir.IntType(32), types.int32)
load_int64 = _load(ir.IntType(64), types.int64)


@intrinsic
def splat(typing_context: Any, value: Any) -> Any:
    """A vector of one float32, eight times."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = builder.insert_element(
            ir.Constant(_VECTOR, ir.Undefined), arguments[0], ir.IntType(32)(0)
        )
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), lanes)

    return vector(types.float32), generate


@intrinsic
def lane(typing_context: Any, value: Any, index: Any) -> Any:
    """One element of a vector."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.extract_element(arguments[0], arguments[1])

    return types.float32(vector, types.int64), generate


def _operation(name: str) -> Any:
    def typed(typing_context: Any, first: Any, second: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, name)(*arguments)

        return vector(vector, vector), generate

    return intrinsic(typed)


add, subtract, multiply, divide = map(_operation, ("fadd", "fsub", "fmul", "fdiv"))


@intrinsic
def square_root(typing_context: Any, value: Any) -> Any:
    """The square root of each element."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR]), f"llvm.sqrt.v{LANES}f32"
        )
        return builder.call(function, arguments)

    return vector(vector), generate
