"""Slots of ids, where only some ids have one of their own, in one pass.

The torch code of `outsize.tables.id_slots` and `outsize.hashing` is the reference.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Int32, Int64, Integer
from torch import Tensor

from outsize.kernels.arrays import array, is_plain
from outsize.kernels.available import uses_triton
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.threads import num_parts, run_parts

_LEAST_IDS = 4096
_LEAST_PER_THREAD = 8192
_MOST_SHARED = 1 << 24
_LEAST_LOWS = 64  # so many are compared at once


class SlotMap(NamedTuple):
    """Which ids have slots of their own, and how the others share the slots after those.

    Attributes:
        starts: The first slot of each block of ids, from `outsize.tables.id_slots`.
        lows: The low 8 or 16 bits of the id of each slot.
        hashes: The hash function of ids without a slot of their own, in the first row.
        num_shared: The number of slots that ids share.
        offset: What to add to ids before they are hashed.
    """

    starts: Int32[Tensor, " blocks"]
    lows: Integer[Tensor, " own"]
    hashes: Int64[Tensor, "columns 9"]
    num_shared: int
    offset: int


def found_slots(ids: Int64[Tensor, " n"], slot_map: SlotMap) -> Int64[Tensor, " n"] | None:
    """The slot of each id; `None` if the caller must use torch."""
    starts, lows, hashes, num_shared, offset = slot_map
    if 1 <= num_shared <= _MOST_SHARED and uses_triton(ids, starts, lows, hashes):
        from outsize.kernels.compositional.slots_triton import found_slots_by_triton

        return found_slots_by_triton(ids, slot_map)
    if not (
        is_plain(ids, starts, lows, hashes)  # first: a trace has no fixed sizes
        and is_worthwhile(ids.shape[0], _LEAST_IDS)
        and 1 <= num_shared <= _MOST_SHARED
    ):
        return None
    kernels = compiled("compositional.slots_numba")
    if kernels is None:
        return None
    num_own, slots = lows.shape[0], torch.empty(ids.shape[0], dtype=torch.int64)
    if num_own < _LEAST_LOWS:
        lows = torch.nn.functional.pad(lows, (0, _LEAST_LOWS))
    run_parts(
        kernels.find_slots,
        num_parts(ids.shape[0], _LEAST_PER_THREAD),
        array(ids.contiguous()),
        array(starts.contiguous()),
        array(lows.contiguous().view(torch.uint8)),
        8 * lows.element_size(),
        array(hashes[0].contiguous()),
        num_own,
        num_shared,
        offset,
        array(slots),
    )
    return slots
