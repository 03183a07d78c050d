"""Vector instructions for pieces of vectors, which are a few numbers long.

A loop over so few numbers costs more than the work in it: tests for overlapping memory, and a
remainder for each piece. `lanes` is a constant number of float32 that are read and written at once,
as a vector of LLVM: in one register or in several, as the processor has them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

_FLOAT_BYTES = 4  # the alignment: pieces begin anywhere


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any, target: ir.Type) -> Any:
    """A pointer to element `index` of a contiguous array, as one to a `target`."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), target.as_pointer())


def _vector(lanes: Any) -> ir.Type:
    return ir.VectorType(ir.FloatType(), lanes.literal_value)


def _times(builder: Any, values: Any, factor: Any) -> Any:
    """A vector times a number; a factor that is the constant 1 costs nothing."""
    blank = ir.Constant(values.type, ir.Undefined)
    one = builder.insert_element(blank, factor, ir.IntType(32)(0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), values.type.count), None)
    return builder.fmul(values, builder.shuffle_vector(one, blank, lanes))


@intrinsic(prefer_literal=True)
def copy(
    typing_context: Any, lanes: Any, array: Any, start: Any, sign: Any, out: Any, place: Any
) -> Any:
    """Write `sign · array[start : start + lanes]` to `out[place : place + lanes]`."""
    if not isinstance(lanes, types.IntegerLiteral):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, array_type, _, _, out_type, _ = signature.args
        _, array, start, sign, out, place = arguments
        source = _place(context, builder, array_type, array, start, _vector(lanes))
        target = _place(context, builder, out_type, out, place, _vector(lanes))
        values = builder.load(source, align=_FLOAT_BYTES)
        builder.store(_times(builder, values, sign), target, align=_FLOAT_BYTES)
        return context.get_dummy_value()

    return types.void(lanes, array, types.int64, types.float32, out, types.int64), generate


@intrinsic(prefer_literal=True)
def copy_sum(
    typing_context: Any, lanes: Any, array: Any, start: Any, other: Any, out: Any, place: Any
) -> Any:
    """Write `array[start : start + lanes] + array[other : other + lanes]` to `out` at `place`."""
    if not isinstance(lanes, types.IntegerLiteral):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, array_type, _, _, out_type, _ = signature.args
        _, array, start, other, out, place = arguments
        first, second = (
            builder.load(
                _place(context, builder, array_type, array, index, _vector(lanes)),
                align=_FLOAT_BYTES,
            )
            for index in (start, other)
        )
        target = _place(context, builder, out_type, out, place, _vector(lanes))
        builder.store(builder.fadd(first, second), target, align=_FLOAT_BYTES)
        return context.get_dummy_value()

    return types.void(lanes, array, types.int64, types.int64, out, types.int64), generate


@intrinsic(prefer_literal=True)
def add(
    typing_context: Any, lanes: Any, array: Any, start: Any, sign: Any, out: Any, place: Any
) -> Any:
    """Add `sign · array[start : start + lanes]` to `out[place : place + lanes]`."""
    if not isinstance(lanes, types.IntegerLiteral):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, array_type, _, _, out_type, _ = signature.args
        _, array, start, sign, out, place = arguments
        source = _place(context, builder, array_type, array, start, _vector(lanes))
        target = _place(context, builder, out_type, out, place, _vector(lanes))
        values = _times(builder, builder.load(source, align=_FLOAT_BYTES), sign)
        total = builder.fadd(builder.load(target, align=_FLOAT_BYTES), values)
        builder.store(total, target, align=_FLOAT_BYTES)
        return context.get_dummy_value()

    return types.void(lanes, array, types.int64, types.float32, out, types.int64), generate


@intrinsic
def load_word(typing_context: Any, packed: Any, index: Any) -> Any:
    """Eight bytes of a contiguous array of bytes from `index` on, as the machine orders them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        packed, index = arguments
        source = _place(context, builder, signature.args[0], packed, index, ir.IntType(64))
        return builder.load(source, align=1)

    return types.uint64(packed, types.int64), generate


@intrinsic
def unowned(typing_context: Any, array: Any) -> Any:
    """The same array without an owner, for as long as the caller holds it.

    numba counts the references to the owner of an array for every slice of it, by atomic
    instructions, for which the threads of a kernel wait for each other.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        view.meminfo = view.meminfo.type(None)
        view.parent = view.parent.type(None)
        return impl_ret_borrowed(context, builder, signature.return_type, view._getvalue())

    return array(array), generate
