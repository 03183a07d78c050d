"""Pointers from ids to codes, packed in the smallest integer type that can hold them.

16-bit pointers are stored as int16 and read as unsigned: torch's uint16 lacks some index kernels.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64, Integer
from torch import Tensor

from outsize.hashing import hash_ids

_UNSIGNED = {torch.uint8: 0xFF, torch.int16: 0xFFFF, torch.int32: 0xFFFFFFFF}
_CHUNK_IDS = 1 << 18


def pointer_type(num_codes: int) -> torch.dtype:
    """The smallest integer type for pointers `0 … num_codes - 1`."""
    for dtype, largest in _UNSIGNED.items():
        if num_codes - 1 <= largest:
            return dtype
    return torch.int64


def num_addressable(dtype: torch.dtype) -> int:
    """How many codes a pointer of a type can name."""
    return _UNSIGNED.get(dtype, torch.iinfo(dtype).max) + 1


def pack(pointers: Int64[Tensor, "*shape"], dtype: torch.dtype) -> Integer[Tensor, "*shape"]:
    """Convert pointers to a type that `pointer_type` returned."""
    return pointers.to(dtype)


def unpack(packed: Integer[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    """The inverse of `pack`."""
    pointers = packed.to(torch.int64)
    return pointers & _UNSIGNED[packed.dtype] if packed.dtype in _UNSIGNED else pointers


def hashed_pointers(
    num_ids: int, hashes: Int64[Tensor, "columns 9"], num_codes: int
) -> Integer[Tensor, "num_ids columns"]:
    """Packed pointers of all ids from random hashes, for a table that is not clustered yet."""
    packed = torch.empty(num_ids, hashes.shape[0], dtype=pointer_type(num_codes))
    if packed.is_meta:
        return packed
    for first in range(0, num_ids, _CHUNK_IDS):
        ids = torch.arange(first, min(first + _CHUNK_IDS, num_ids))
        packed[first : first + _CHUNK_IDS] = pack(hash_ids(ids, hashes, num_codes), packed.dtype)
    return packed
