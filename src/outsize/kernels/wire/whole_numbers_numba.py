"""Lines of float32 as a scale and whole numbers, at addresses: what `scaled_bytes` does, inlined.

Vector instructions round and clamp eight numbers at a time; every number is rounded as one alone.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy import float32, int32, rint

from outsize.kernels.gather.lines_numba import copy_line
from outsize.kernels.vectors_numba import (
    load,
    load_float,
    load_int32,
    loader,
    multiply,
    splat,
    store,
    store_float,
    vector,
)

_SMALLEST = float32(1.1754943508222875e-38)
_LANES = 8

load_int8, load_int16 = loader(types.int8, alignment=1), loader(types.int16, alignment=1)
load_scale = loader(types.float32, alignment=1)  # a line of whole numbers starts at any byte


def _store(result: Any) -> Any:
    def typed(typing_context: Any, address: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = builder.inttoptr(arguments[0], context.get_data_type(result).as_pointer())
            builder.store(arguments[1], place, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, result), generate

    return intrinsic(typed)


store_int8, store_int16, store_int32 = map(_store, (types.int8, types.int16, types.int32))
store_int64, store_scale = map(_store, (types.int64, types.float32))


def _integers(bits: int) -> ir.VectorType:
    return ir.VectorType(ir.IntType(bits), _LANES)


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
        kind = vector.in_llvm
        rounding = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(kind, [kind]), "llvm.rint.v8f32"
        )
        number = builder.call(rounding, [builder.fdiv(values, divisors)])
        least = builder.fneg(largest)
        number = builder.select(builder.fcmp_ordered("<", number, least), least, number)
        return builder.select(builder.fcmp_ordered(">", number, largest), largest, number)

    return vector(vector, vector, vector), generate


def _store_vector(bits: int) -> Any:
    def typed(typing_context: Any, address: Any, values: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = builder.inttoptr(arguments[0], _integers(bits).as_pointer())
            number = builder.trunc(builder.fptosi(arguments[1], _integers(32)), _integers(bits))
            builder.store(number, place, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, vector), generate

    return intrinsic(typed)


def _load_vector(bits: int) -> Any:
    def typed(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = builder.inttoptr(arguments[0], _integers(bits).as_pointer())
            return builder.sitofp(builder.load(place, align=1), vector.in_llvm)

        return vector(types.int64), generate

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
    scale = _scale(source, dim, limit)
    store_scale(target, scale)
    divisor = max(scale, _SMALLEST)
    divisors, largest = splat(divisor), splat(limit)
    whole = dim - dim % 8
    numbers = target + 4
    for j in range(0, whole, 8):
        found = quotients(load(source + 4 * j), divisors, largest)
        if width == 1:
            store_as_int8(numbers + j, found)
        else:
            store_as_int16(numbers + 2 * j, found)
    for j in range(whole, dim):
        number = min(max(rint(load_float(source + 4 * j) / divisor), -limit), limit)
        if width == 1:
            store_int8(numbers + j, numba.int8(number))
        else:
            store_int16(numbers + 2 * j, numba.int16(number))


@numba.njit(forceinline=True)
@no_type_check
def decode_line(source, target, dim, width):
    """Read what `encode_line` wrote."""
    if width == 4:
        copy_line(source, target, dim)
        return
    scale = load_scale(source)
    scales = splat(scale)
    whole = dim - dim % 8
    numbers = source + 4
    for j in range(0, whole, 8):
        if width == 1:
            store(target + 4 * j, multiply(load_from_int8(numbers + j), scales))
        else:
            store(target + 4 * j, multiply(load_from_int16(numbers + 2 * j), scales))
    for j in range(whole, dim):
        if width == 1:
            number = float32(load_int8(numbers + j))
        else:
            number = float32(load_int16(numbers + 2 * j))
        store_float(target + 4 * j, number * scale)
