"""Small integers packed to a number of bits each, in a row of bytes.

Value i is the bits `i · bits … (i + 1) · bits − 1`, least significant first. A few bytes at the end
are spare, so that every value can be read as the same number of bytes.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64, Integer, UInt8
from torch import Tensor

_CHUNK_VALUES = 1 << 16  # a multiple of 8, so that chunks end at whole bytes


def bits_for(num_values: int) -> int:
    """Bits that tell `num_values` values apart, ⌈log₂ num_values⌉; at least 1."""
    return max(1, (num_values - 1).bit_length())


def packed_bytes(num_values: int, bits: int) -> int:
    """Bytes of packed values, spare ones included."""
    return -(-num_values * bits // 8) + _bytes_read(bits) - 1


def pack_bits(values: Integer[Tensor, " n"], bits: int) -> UInt8[Tensor, " bytes"]:
    """Pack values `0 … 2^bits − 1`."""
    packed = torch.zeros(packed_bytes(values.numel(), bits), dtype=torch.uint8)
    packed = packed.to(values.device)
    places = torch.arange(bits, device=values.device)
    powers = 2 ** torch.arange(8, device=values.device)
    for first in range(0, values.numel(), _CHUNK_VALUES):
        part = values[first : first + _CHUNK_VALUES].long().unsqueeze(1)
        flat = ((part >> places) & 1).flatten()
        flat = torch.nn.functional.pad(flat, (0, -flat.numel() % 8))
        found = (flat.view(-1, 8) * powers).sum(dim=1).to(torch.uint8)
        start = first * bits // 8
        packed[start : start + found.numel()] = found
    return packed


def read_bits(
    packed: UInt8[Tensor, " bytes"], places: Int64[Tensor, "*shape"], bits: int
) -> Int64[Tensor, "*shape"]:
    """The values at some places of what `pack_bits` returned."""
    first = places * bits
    at = first >> 3
    word = packed[at].long()
    for i in range(1, _bytes_read(bits)):
        word = word | (packed[at + i].long() << (8 * i))
    return torch.bitwise_right_shift(word, first & 7) & ((1 << bits) - 1)


def _bytes_read(bits: int) -> int:
    """Bytes that hold a value, wherever it begins in the first of them."""
    return (bits + 14) // 8
