"""Slots of ids: a search among the sorted ids of a block, or a hash.

Which way a binary search goes is as good as random, and a processor that guesses it wrong loses
more time than a step takes. So the last ids, which are most often all of a block, are compared at
once, by vector instructions.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy import int64, uint16, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.compositional.starts_numba import hash_mixed, mix

_LANES = 64
_MOST_COMPARED = 4 * _LANES


@intrinsic
def _compare(typing_context: Any, lows: Any, place: Any, wanted: Any, chosen: Any) -> Any:
    """Compare 64 elements of an array, from `place` on, with a number.

    Returns:
        Twice the number of elements that are less, plus 1 if one is equal. Elements count whose
        bit in the 64-bit word `chosen` is set.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place, wanted, chosen = arguments
        element, word = context.get_data_type(signature.args[0].dtype), ir.IntType(64)
        vector = ir.VectorType(element, _LANES)
        data = context.make_array(signature.args[0])(context, builder, array).data
        source = builder.bitcast(builder.gep(data, [place]), vector.as_pointer())
        values = builder.load(source, align=1)
        blank = ir.Constant(vector, ir.Undefined)
        one = builder.insert_element(blank, builder.trunc(wanted, element), ir.IntType(32)(0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), None)
        all_wanted = builder.shuffle_vector(one, blank, lanes)
        less, equal = (
            builder.and_(
                builder.bitcast(builder.icmp_unsigned(how, values, all_wanted), word), chosen
            )
            for how in ("<", "==")
        )
        is_equal = builder.zext(builder.icmp_unsigned("!=", equal, word(0)), word)
        return builder.or_(builder.shl(builder.ctpop(less), word(1)), is_equal)

    return types.int64(lows, types.int64, types.int64, types.uint64), generate


@numba.njit(forceinline=True)
@no_type_check
def _find(first, stop, ids, starts, lows, low_bits, words, num_own, num_shared, offset, slots):
    """`find_slots`, compiled for a number of low bits."""
    a, b, c = uint64(words[0]), uint64(words[1]), uint64(words[2])
    for i in range(first, stop):
        hashed = hash_mixed(mix(uint64(ids[i]) + uint64(offset)), a, b, c)
        slots[i] = num_own + int64((hashed * uint64(num_shared)) >> uint64(32))
    last = len(lows) - _LANES
    for i in range(first, stop):
        block, wanted = ids[i] >> low_bits, ids[i] & ((1 << low_bits) - 1)
        place = int64(starts[block])
        num = int64(starts[block + 1]) - place
        while num > _MOST_COMPARED:
            half = num >> 1
            if int64(lows[place + half - 1]) < wanted:
                place += half
            num -= half
        slot, is_own = place, 0
        while num > 0:
            begin = min(place, last)
            chosen = (uint64(2) << uint64(min(num, _LANES) - 1)) - uint64(1)
            found = _compare(lows, begin, wanted, chosen << uint64(place - begin))
            slot += found >> 1
            is_own |= found & 1
            place += _LANES
            num -= _LANES
        slots[i] += (slot - slots[i]) & -is_own


@kernel(
    "void(int64, int64, int64[::1], int32[::1], uint8[::1], int64, int64[::1], int64, int64, int64,"
    " int64[::1])"
)
@no_type_check
def find_slots(part, parts, ids, starts, lows, low_bits, words, num_own, num_shared, offset, slots):
    """The slot of each id: its own, or one of those that the others share.

    Args:
        part: Which part of the ids to do.
        parts: Number of parts.
        ids: The ids.
        starts: The first slot of each block of ids.
        lows: The low bits of the id of each slot, as bytes; 64 numbers or more.
        low_bits: 8 or 16.
        words: The hash function of ids without a slot of their own.
        num_own: The number of slots of one id, which come first.
        num_shared: The number of slots that ids share; at most 2²⁴.
        offset: What to add to ids before they are hashed.
        slots: The slots (output).
    """
    first, stop = len(ids) * part // parts, len(ids) * (part + 1) // parts
    if low_bits == 8:
        _find(first, stop, ids, starts, lows, 8, words, num_own, num_shared, offset, slots)
    else:
        wide = lows.view(uint16)
        _find(first, stop, ids, starts, wide, 16, words, num_own, num_shared, offset, slots)
