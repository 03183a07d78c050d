"""A few float32 in one register, for kernels that work on short rows and pieces of rows.

A loop over the elements of a short row costs more than the work in it: the compiler adds checks for
overlapping memory and a remainder to every row. These vectors are those of LLVM, so every processor
has them, in one register or in several; each element is rounded as a single number would be. Most
kernels use eight.

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
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic, register_model

_ALIGNMENT = 4  # bytes, of a float32: rows may start anywhere


class Vector(types.Type):  # type: ignore[misc]
    """The type of a number of float32."""

    def __init__(self, lanes: int) -> None:
        super().__init__(name=f"float32x{lanes}")
        self.in_llvm = ir.VectorType(ir.FloatType(), lanes)


vector = Vector(8)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, kind.in_llvm)


@intrinsic
def address_of(typing_context: Any, array: Any) -> Any:
    """The address of the first element of a contiguous array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), generate


@intrinsic
def unowned(typing_context: Any, array: Any) -> Any:
    """The same array without an owner, whose references are not counted; the caller holds it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        view.meminfo = view.meminfo.type(None)
        view.parent = view.parent.type(None)
        return impl_ret_borrowed(context, builder, signature.return_type, view._getvalue())

    return array(array), generate


def loader(result: Any, alignment: int = _ALIGNMENT) -> Any:
    """A function that reads a number, or a vector, at an address."""

    def typed(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = builder.inttoptr(arguments[0], context.get_data_type(result).as_pointer())
            return builder.load(place, align=alignment)

        return result(types.int64), generate

    return intrinsic(typed)


load, load_16, load_4, load_1 = map(loader, (vector, Vector(16), Vector(4), Vector(1)))
load_float, load_int32, load_int64 = map(loader, (types.float32, types.int32, types.int64))
load_word = loader(types.uint64, alignment=1)  # from any byte on


@intrinsic
def load_like(typing_context: Any, address: Any, values: Any) -> Any:
    """As many float32 as a vector has."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], arguments[1].type.as_pointer())
        return builder.load(place, align=_ALIGNMENT)

    return values(types.int64, values), generate


def storer(number: Any, alignment: int = _ALIGNMENT) -> Any:
    """A function that writes a number, or a vector, at an address."""

    def typed(typing_context: Any, address: Any, given: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = builder.inttoptr(arguments[0], arguments[1].type.as_pointer())
            builder.store(arguments[1], place, align=alignment)
            return context.get_dummy_value()

        return types.void(types.int64, given if isinstance(given, Vector) else number), generate

    return intrinsic(typed)


store = storer(types.float32)


def _repeated(builder: Any, number: Any, kind: ir.Type) -> Any:
    blank = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(blank, number, ir.IntType(32)(0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), None)
    return builder.shuffle_vector(one, blank, lanes)


@intrinsic
def splat(typing_context: Any, value: Any) -> Any:
    """A vector of one float32, eight times."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _repeated(builder, arguments[0], vector.in_llvm)

    return vector(types.float32), generate


@intrinsic
def repeated(typing_context: Any, number: Any, values: Any) -> Any:
    """A vector of one float32, with as many elements as another."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _repeated(builder, arguments[0], arguments[1].type)

    return values(types.float32, values), generate


@intrinsic
def scale(typing_context: Any, values: Any, factor: Any) -> Any:
    """A vector times a number; a factor that is the constant 1 costs nothing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, factor = arguments
        return builder.fmul(values, _repeated(builder, factor, values.type))

    return values(values, types.float32), generate


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

        return first(first, first), generate

    return intrinsic(typed)


add, subtract, multiply, divide = map(_operation, ("fadd", "fsub", "fmul", "fdiv"))


@intrinsic
def square_root(typing_context: Any, value: Any) -> Any:
    """The square root of each element."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return of_each(builder, "sqrt", arguments[0])

    return value(value), generate


def of_each(builder: Any, name: str, values: Any) -> Any:
    """A function that LLVM has, of each element."""
    kind = values.type
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kind, [kind]), f"llvm.{name}.v{kind.count}f32"
    )
    return builder.call(function, [values])
