"""Numbers of half-precision rows in Triton kernels, with the stochastic rounding of `rounding`.

Rows are loaded and stored as they are in memory: float32, or the bits of bfloat16 and float16 as
int16. The results of rounding equal those of `rounding.round_at_random` bit for bit.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

FLOAT, BFLOAT, HALF = range(3)
_FORMATS = {torch.float32: FLOAT, torch.bfloat16: BFLOAT, torch.float16: HALF}
_BFLOAT, _HALF = tl.constexpr(BFLOAT), tl.constexpr(HALF)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_LARGEST_BFLOAT = tl.constexpr(torch.finfo(torch.bfloat16).max)
_LARGEST_HALF = tl.constexpr(torch.finfo(torch.float16).max)
_INFINITY = tl.constexpr(float("inf"))


def has_format(rows: Tensor) -> bool:
    """Whether kernels can read and write rows of this type."""
    return rows.dtype in _FORMATS


def as_words(rows: Tensor) -> tuple[Tensor, int]:
    """Rows as kernels take them, in the same memory, and the number of their format."""
    form = _FORMATS[rows.dtype]
    return (rows if form == FLOAT else rows.view(torch.int16)), form


@triton.jit
@no_type_check
def as_float(words, FORMAT: tl.constexpr):
    """Loaded numbers as float32."""
    if FORMAT == _BFLOAT:
        bits = words.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        numbers = bits.to(tl.float32, bitcast=True)
    elif FORMAT == _HALF:
        numbers = words.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        numbers = words
    return numbers


@triton.jit
@no_type_check
def _mixed(words):
    """`hashing.mix_bits` of unsigned words."""
    words = (words ^ (words >> 30)) * _MIX_1
    words = (words ^ (words >> 27)) * _MIX_2
    return words ^ (words >> 31)


@triton.jit
@no_type_check
def rounding_keys(seed, ids, clocks, ticks):
    """`rounding.rounding_keys`; `seed` is derived from that of the store."""
    rows = _mixed(ids.to(tl.uint64) + seed.to(tl.uint64))
    return _mixed(rows + (clocks.to(tl.uint64) << 31) + ticks.to(tl.uint64))


@triton.jit
@no_type_check
def _nearest_bfloat(numbers):
    """The bits of the nearest bfloat16, the even one of two; not for NaN."""
    bits = numbers.to(tl.uint32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.uint16).to(tl.int16, bitcast=True)


@triton.jit
@no_type_check
def rounded_words(numbers, keys, columns, FORMAT: tl.constexpr):
    """`rounding.round_at_random`, as words.

    `keys` has one key per line of `numbers`, and `columns` the column of each of their numbers.
    """
    largest = _LARGEST_BFLOAT if FORMAT == _BFLOAT else _LARGEST_HALF
    is_finite = tl.abs(numbers) < _INFINITY
    bounded = tl.minimum(tl.maximum(numbers, -largest), largest)
    numbers = tl.where(is_finite, bounded, numbers)
    if FORMAT == _BFLOAT:
        nearest = _nearest_bfloat(numbers)
    else:
        nearest = numbers.to(tl.float16).to(tl.int16, bitcast=True)
    back = as_float(nearest, FORMAT)
    # Adding 1 to the bits of a float gives the next number away from zero.
    step = tl.where(tl.abs(numbers) > tl.abs(back), 1, -1).to(tl.int16)
    other = nearest + step
    share = tl.div_rn(tl.abs(numbers - back), tl.abs(as_float(other, FORMAT) - back))
    draws = _mixed(keys[:, None] + columns[None, :].to(tl.uint64)) >> 41
    draws = (draws.to(tl.int32).to(tl.float32) + 0.5) * (1.0 / 8388608)
    words = tl.where(draws < share, other, nearest)
    if FORMAT == _BFLOAT:  # whose nearest number was found by its bits
        words = tl.where(numbers != numbers, 0x7FC0, words).to(tl.int16)
    return words
