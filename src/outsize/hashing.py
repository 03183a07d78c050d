"""Universal hash functions for 64-bit ids, and random numbers computed from a key.

**Hash functions.** An id is mixed by a fixed bijection and split into 32-bit halves (lo, hi); then

    h(x) = ((a₁·lo + a₂·hi + b) mod 2⁶⁴) >> 32,     a₁, a₂, b drawn from 64 random bits,

the vector form of multiply-shift (Dietzfelbinger et al. 1997; Thorup, "High speed hashing for
integers and strings"). Over the draw of its coefficients it is strongly universal: any two ids get
independent, uniform 32-bit values, the property Count-Sketch needs ("Clustering the Sketch", C).
The bijection keeps that property and breaks up runs of consecutive ids. A value is reduced to a
range by multiply-high, not by a remainder, so buckets are equally likely even if their number is
not a power of two: 32 random bits are used for up to 2²⁴ buckets, 62 bits beyond that. The additive
`b` makes h(0) differ between functions.

**Random numbers by key.** `uniform_at` and `normal_at` are stateless: the same key gives the same
number in any order, any shard and any batch.

Everything is torch int64 arithmetic, which wraps modulo 2⁶⁴ on both the CPU and CUDA.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.errors import ConfigError

_MASK_64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MAX_BUCKETS = 1 << 62
_NARROW_BITS = 24  # up to here, with 32 random bits, bucket probabilities differ by at most 1/256
_WORDS_PER_HASH = 9  # three functions of three words: bucket, bucket's low bits, sign
BYTES_PER_HASH = 8 * _WORDS_PER_HASH


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= _MASK_64
    return value - (1 << 64) if value >> 63 else value


def _mix_int(value: int) -> int:
    value &= _MASK_64
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK_64
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK_64
    return value ^ (value >> 31)


def derive_seed(seed: int, *path: int | str) -> int:
    """Derive a seed for one named use of `seed`; different paths give unrelated seeds.

    Integers are taken modulo 2⁶⁴. Returns a non-negative int below 2⁶³.
    """
    state = _mix_int(seed + _GOLDEN)
    for part in path:
        if isinstance(part, int):
            words = [-1, part]  # no text has this length
        else:
            text = part.encode()
            words = [len(text)]
            words += [int.from_bytes(text[i : i + 8], "little") for i in range(0, len(text), 8)]
        for word in words:
            state = _mix_int((state + _GOLDEN) ^ _mix_int(word + _GOLDEN))
    return state >> 1


def mix_bits(keys: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    """Scramble 64-bit words by a fixed bijection (the finalizer of SplitMix64)."""
    keys = (keys ^ ((keys >> 30) & ((1 << 34) - 1))) * _signed(_MIX_1)
    keys = (keys ^ ((keys >> 27) & ((1 << 37) - 1))) * _signed(_MIX_2)
    return keys ^ ((keys >> 31) & ((1 << 33) - 1))


def draw_hashes(num_hashes: int, seed: int) -> Int64[Tensor, "num_hashes 9"]:
    """Draw the coefficients of `num_hashes` independent hash functions, one per row."""
    words = [
        _signed(_mix_int(derive_seed(seed, "hash", i, j)))
        for i in range(num_hashes)
        for j in range(_WORDS_PER_HASH)
    ]
    return torch.tensor(words, dtype=torch.int64).view(num_hashes, _WORDS_PER_HASH)


def _multiply_shift(
    ids: Int64[Tensor, "*shape"], words: Int64[Tensor, "hashes 3"]
) -> Int64[Tensor, "*shape hashes"]:
    """The multiply-shift hash of each id: 32 bits in an int64."""
    mixed = mix_bits(ids).unsqueeze(-1)
    lo, hi = mixed & 0xFFFFFFFF, (mixed >> 32) & 0xFFFFFFFF
    return ((words[:, 0] * lo + words[:, 1] * hi + words[:, 2]) >> 32) & 0xFFFFFFFF


def hash_ids(
    ids: Int64[Tensor, "*shape"], hashes: Int64[Tensor, "hashes 9"], num_buckets: int
) -> Int64[Tensor, "*shape hashes"]:
    """Map each id to one bucket per hash function.

    Args:
        ids: Any 64-bit integers, including negative ones.
        hashes: Functions drawn by `draw_hashes`.
        num_buckets: Number of buckets, from 1 to 2⁶²; buckets are `0 … num_buckets - 1`.
    """
    if not 1 <= num_buckets <= _MAX_BUCKETS:
        raise ConfigError(f"num_buckets must be between 1 and 2**62, but got {num_buckets}")
    value = _multiply_shift(ids, hashes[:, :3])
    if num_buckets <= 1 << _NARROW_BITS:
        return (value * num_buckets) >> 32
    # 62 bits from two independent functions, and multiply-high in 31-bit limbs so that no
    # intermediate result overflows int64.
    upper, lower = value >> 1, _multiply_shift(ids, hashes[:, 3:6]) >> 1
    top, bottom = num_buckets >> 31, num_buckets & ((1 << 31) - 1)
    carry = (upper * bottom + lower * top + ((lower * bottom) >> 31)) >> 31
    return upper * top + carry


def hash_signs(
    ids: Int64[Tensor, "*shape"], hashes: Int64[Tensor, "hashes 9"]
) -> Int64[Tensor, "*shape hashes"]:
    """Map each id to +1 or -1 per hash function, independently of its bucket."""
    return 1 - 2 * (_multiply_shift(ids, hashes[:, 6:]) >> 31)


def uniform_at(
    keys: Int64[Tensor, "*shape"], dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*shape"]:
    """A uniform random number in (0, 1) for each key, never 0 or 1.

    Args:
        keys: Any 64-bit words.
        dtype: float32, with 23 random bits, or float64, with 52.
    """
    if dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"dtype must be float32 or float64, but got {dtype}")
    num_bits = 23 if dtype == torch.float32 else 52
    bits = (mix_bits(keys) >> (64 - num_bits)) & ((1 << num_bits) - 1)
    return (bits.to(dtype) + 0.5) * 2.0**-num_bits


def normal_at(keys: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """A standard normal float32 for each key (Box-Muller, two draws per key)."""
    radius = torch.sqrt(-2.0 * torch.log(uniform_at(keys)))
    angle = uniform_at(keys ^ _signed(_GOLDEN)) * (2.0 * math.pi)
    return radius * torch.cos(angle)
