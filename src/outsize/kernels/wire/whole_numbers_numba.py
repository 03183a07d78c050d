"""Lines of float32 as a scale and whole numbers, at addresses: what `scaled_bytes` does, inlined.

Vector instructions round and clamp eight numbers at a time; every number is rounded as one alone.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy import float32, int32

from outsize.kernels.lines_numba import copy_line, of_lines
from outsize.kernels.vectors_numba import (
    load,
    load_int32,
    loader,
    of_each,
    repeated,
    scale,
    splat,
    store,
    storer,
    vector,
)

_SMALLEST = float32(1.1754943508222875e-38)
_LANES = 8

load_int8 = loader(types.int8, alignment=1)
load_scale = loader(types.float32, alignment=1)  # a line of whole numbers starts at any byte


store_int8, store_int32, store_int64, store_scale = (
    storer(kind, alignment=1) for kind in (types.int8, types.int32, types.int64, types.float32)
)


def _integers(bits: int, lanes: int = _LANES) -> ir.VectorType:
    return ir.VectorType(ir.IntType(bits), lanes)


def _all(bits: int, number: int) -> ir.Constant:
    return ir.Constant(_integers(bits), [number] * _LANES)


@intrinsic
def greater_magnitude(typing_context: Any, magnitudes: Any, values: Any) -> Any:
    """The greater of magnitudes and those of values, in the order of their bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        known, bits = (builder.bitcast(each, _integers(32)) for each in arguments)
        bits = builder.and_(bits, _all(32, 0x7FFFFFFF))
        greater = builder.select(builder.icmp_signed(">", bits, known), bits, known)
        return builder.bitcast(greater, vector.in_llvm)

    return vector(vector, vector), generate


@intrinsic
def bits_of_lane(typing_context: Any, values: Any, index: Any) -> Any:
    """The bits of one element."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.extract_element(builder.bitcast(arguments[0], _integers(32)), arguments[1])

    return types.int32(vector, types.int64), generate


@intrinsic
def quotients(typing_context: Any, values: Any, divisors: Any, largest: Any) -> Any:
    """Values / divisors, rounded to whole numbers of at most a magnitude."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, divisors, largest = arguments
        number = of_each(builder, "rint", builder.fdiv(values, divisors))
        least = builder.fneg(largest)
        number = builder.select(builder.fcmp_ordered("<", number, least), least, number)
        return builder.select(builder.fcmp_ordered(">", number, largest), largest, number)

    return values(values, values, values), generate


def _store_vector(bits: int) -> Any:
    def typed(typing_context: Any, address: Any, values: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            lanes = arguments[1].type.count
            wide, narrow = _integers(32, lanes), _integers(bits, lanes)
            number = builder.trunc(builder.fptosi(arguments[1], wide), narrow)
            builder.store(number, builder.inttoptr(arguments[0], narrow.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, values), generate

    return intrinsic(typed)


def _load_vector(bits: int) -> Any:
    def typed(typing_context: Any, address: Any, like: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = arguments[1].type
            place = builder.inttoptr(arguments[0], _integers(bits, kind.count).as_pointer())
            return builder.sitofp(builder.load(place, align=1), kind)

        return like(types.int64, like), generate

    return intrinsic(typed)


store_as_int8, store_as_int16 = map(_store_vector, (8, 16))
load_from_int8, load_from_int16 = map(_load_vector, (8, 16))


@numba.njit(forceinline=True)
@no_type_check
def bytes_of_line(width, dim):
    """Bytes of a line as float32 (`width` 4), or as a scale and numbers of one or two bytes."""
    return 4 * dim if width == 4 else 4 + width * dim


@numba.njit(forceinline=True)
@no_type_check
def _scale(source, dim, largest):
    whole = dim - dim % 8
    peaks = splat(float32(0.0))
    for j in range(0, 4 * whole, 32):
        peaks = greater_magnitude(peaks, load(source + j))
    peak = int32(0)
    for k in range(8):
        peak = max(peak, bits_of_lane(peaks, k))
    for j in range(4 * whole, 4 * dim, 4):
        peak = max(peak, int32(load_int32(source + j) & int32(0x7FFFFFFF)))
    return int32(peak).view(float32) / largest


@numba.njit(forceinline=True, error_model="numpy")
@no_type_check
def encode_line(source, target, dim, width):
    """Write a line as `width` says; see `bytes_of_line`."""
    if width == 4:
        copy_line(source, target, dim)
        return
    limit = float32(127.0) if width == 1 else float32(32767.0)
    factor = _scale(source, dim, limit)
    store_scale(target, factor)
    _put_quotients(source, target + 4, dim, max(factor, _SMALLEST), limit, width)


@of_lines
@no_type_check
def _put_quotients(values, target, j, divisor, limit, width):
    found = quotients(values, repeated(divisor, values), repeated(limit, values))
    if width == 1:
        store_as_int8(target + (j >> 2), found)
    else:
        store_as_int16(target + (j >> 1), found)


@numba.njit(forceinline=True)
@no_type_check
def decode_line(source, target, dim, width):
    """Read what `encode_line` wrote."""
    if width == 4:
        copy_line(source, target, dim)
        return
    _put_products(target, target, dim, source + 4, load_scale(source), width)


@of_lines
@no_type_check
def _put_products(values, target, j, numbers, factor, width):
    if width == 1:
        found = load_from_int8(numbers + (j >> 2), values)
    else:
        found = load_from_int16(numbers + (j >> 1), values)
    store(target + j, scale(found, factor))
