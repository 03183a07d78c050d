"""A map from some ids of a table to slots `0, 1, …`, in about one or two bytes per id.

The ids are sorted, and slot s belongs to the s-th of them. Ids are cut into blocks of 2⁸ or 2¹⁶:
`starts` has the first slot of each block, and `lows` the low 8 or 16 bits of each id. A look-up is
a binary search among the ids of one block.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int32, Int64, Integer
from torch import Tensor

from outsize.tables.pointers import pack, unpack

_TYPES = {8: torch.uint8, 16: torch.int16}


def map_bytes(num_ids: int, num_rows: int) -> int:
    """Bytes of the map of `num_ids` among `num_rows` ids."""
    return _num_bytes(num_ids, num_rows, _width(num_ids, num_rows))


def empty_map(num_ids: int, num_rows: int) -> tuple[Int32[Tensor, " blocks"], Tensor]:
    """`starts` and `lows` of a map with room for `num_ids`, in which no id is found."""
    width = _width(num_ids, num_rows)
    starts = torch.zeros(_num_blocks(num_rows, width) + 1, dtype=torch.int32)
    return starts, torch.zeros(num_ids, dtype=_TYPES[width])


def slot_map(
    ids: Int64[Tensor, " n"], num_rows: int
) -> tuple[Int32[Tensor, " blocks"], Integer[Tensor, " n"]]:
    """`starts` and `lows` of ascending ids."""
    width = _width(ids.numel(), num_rows)
    edges = torch.arange(_num_blocks(num_rows, width) + 1, device=ids.device) << width
    starts = torch.searchsorted(ids, edges).to(torch.int32)
    return starts, pack(ids & ((1 << width) - 1), _TYPES[width])


def find_slots(
    ids: Int64[Tensor, " n"], starts: Int32[Tensor, " blocks"], lows: Integer[Tensor, " m"]
) -> tuple[Int64[Tensor, " n"], Bool[Tensor, " n"]]:
    """The slot of each id, and whether it has one."""
    width, num_ids = 8 * lows.element_size(), int(lows.shape[0])  # a tensor in a trace
    wanted = ids & ((1 << width) - 1)
    low, stop = (starts[(ids >> width) + i].long() for i in range(2))
    high, last = stop, num_ids - 1
    for _ in range(min(width, num_ids.bit_length()) + 1):
        middle = (low + high) >> 1
        is_less = (low < high) & (unpack(lows[middle.clamp(max=last)]) < wanted)
        is_more = (low < high) & ~is_less
        low, high = torch.where(is_less, middle + 1, low), torch.where(is_more, middle, high)
    found = (low < stop) & (unpack(lows[low.clamp(max=last)]) == wanted)
    return low, found


def _num_blocks(num_rows: int, width: int) -> int:
    return ((num_rows - 1) >> width) + 1


def _num_bytes(num_ids: int, num_rows: int, width: int) -> int:
    return 4 * (_num_blocks(num_rows, width) + 1) + num_ids * width // 8


def _width(num_ids: int, num_rows: int) -> int:
    """The number of low bits that makes the map smallest."""
    return min(_TYPES, key=lambda width: _num_bytes(num_ids, num_rows, width))
