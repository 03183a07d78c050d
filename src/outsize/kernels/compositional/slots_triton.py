"""Slots of ids on CUDA: a binary search among the ids of a block, or a hash."""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Int64
from torch import Tensor

from outsize.kernels.compositional.slots import SlotMap
from outsize.kernels.compositional.starts_triton import bucket_of, hash_mixed, mix
from outsize.kernels.launches_triton import ceil_div, launch
from outsize.kernels.launching import on_device

_BLOCK = 256


def found_slots_by_triton(ids: Int64[Tensor, " n"], slot_map: SlotMap) -> Int64[Tensor, " n"]:
    """`found_slots`."""
    starts, lows, hashes, num_shared, offset = slot_map
    ids, slots = ids.contiguous(), torch.empty_like(ids, memory_format=torch.contiguous_format)
    if not len(ids):
        return slots
    with on_device(ids):
        launch(
            find_slots_kernel, (ceil_div(len(ids), _BLOCK),),
            (ids, starts.contiguous(), lows.contiguous(), hashes.contiguous(), slots, len(ids),
             len(lows), num_shared, offset),
            LOW_BITS=8 * lows.element_size(), BLOCK=_BLOCK,
        )  # fmt: skip
    return slots


@triton.jit(do_not_specialize=["num", "num_own", "num_shared", "offset"])
@no_type_check
def find_slots_kernel(
    ids,
    starts,
    lows,
    words,
    slots,
    num,
    num_own,
    num_shared,
    offset,
    LOW_BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Find the slots of a block of ids."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_id = place < num
    key = tl.load(ids + place, mask=is_id, other=0)
    wanted = (key & ((1 << LOW_BITS) - 1)).to(tl.int32)
    low = tl.load(starts + (key >> LOW_BITS), mask=is_id, other=0)
    stop = tl.load(starts + (key >> LOW_BITS) + 1, mask=is_id, other=0)
    high = stop
    for _ in range(LOW_BITS + 1):
        is_open = is_id & (low < high)
        middle = low + (high - low) // 2  # a sum may be beyond 2³¹
        found = tl.load(lows + middle, mask=is_open, other=0).to(tl.int32)
        is_less = (found & ((1 << LOW_BITS) - 1)) < wanted
        low = tl.where(is_open & is_less, middle + 1, low)
        high = tl.where(is_open & (is_less == 0), middle, high)
    found = tl.load(lows + low, mask=is_id & (low < stop), other=0).to(tl.int32)
    is_own = (low < stop) & ((found & ((1 << LOW_BITS) - 1)) == wanted)
    hashed = hash_mixed(mix((key + offset).to(tl.uint64)), words, 0, 0)
    shared = num_own + bucket_of(hashed, num_shared)
    tl.store(slots + place, tl.where(is_own, low.to(tl.int64), shared), mask=is_id)
