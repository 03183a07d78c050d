"""A hash table from ids to slots in the memory of a GPU.

An entry is a slot alone; its id is the one that `held` has for the slot. So an entry whose slot got
another id is not wrong: whoever meets it compares with what the slot holds now. Removals therefore
do nothing, and old entries only make probes longer, until the table is rebuilt.

Entries are placed by compare-and-swap, in an order that differs from run to run. What a look-up
returns does not depend on where an entry is.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Int32, Int64
from torch import Tensor

from outsize.kernels.launches_triton import ceil_div, launch
from outsize.kernels.launching import on_device

_BLOCK_SIZE = 128


def find_by_triton(
    entries: Int32[Tensor, " entries"],
    held: Int64[Tensor, " slots"],
    ids: Int64[Tensor, " n"],
) -> Int64[Tensor, " n"]:
    """The slot of each id; −1 if there is none."""
    found = torch.empty_like(ids)
    if ids.shape[0]:
        with on_device(ids):
            launch(
                find_kernel, (ceil_div(ids.shape[0], _BLOCK_SIZE),),
                (entries, held, ids.contiguous(), found, ids.shape[0], entries.shape[0]),
                BLOCK_SIZE=_BLOCK_SIZE,
            )  # fmt: skip
    return found


def put_by_triton(
    entries: Int32[Tensor, " entries"],
    ids: Int64[Tensor, " n"],
    slots: Int64[Tensor, " n"] | None,
) -> None:
    """Add absent ids; without `slots`, all that are not negative, each with its place as slot."""
    if ids.shape[0]:
        with on_device(ids):
            launch(
                put_kernel, (ceil_div(ids.shape[0], _BLOCK_SIZE),),
                (entries, ids.contiguous(), ids if slots is None else slots.contiguous(),
                 ids.shape[0], entries.shape[0]),
                HAS_SLOTS=slots is not None, BLOCK_SIZE=_BLOCK_SIZE,
            )  # fmt: skip


@triton.jit
@no_type_check
def _home(key, size):
    """The first place of an id: 32 bits of a mix of all its bits, scaled to the table."""
    word = (key ^ ((key >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    word = (word ^ ((word >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return (((word >> 32) & 0xFFFFFFFF) * size) >> 32


@triton.jit(do_not_specialize=["num"])
@no_type_check
def find_kernel(entries, held, ids, found, num, size, BLOCK_SIZE: tl.constexpr):
    """Probe until the id or an empty entry is found."""
    lane = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    is_id = lane < num
    key = tl.load(ids + lane, mask=is_id, other=0)
    place = _home(key, size)
    slot = tl.full([BLOCK_SIZE], -1, tl.int64)
    is_open = is_id
    while tl.max(is_open.to(tl.int32), axis=0) > 0:
        entry = tl.load(entries + place, mask=is_open, other=-1).to(tl.int64)
        is_open = is_open & (entry >= 0)
        holds = tl.load(held + entry, mask=is_open, other=-1) == key
        slot = tl.where(is_open & holds, entry, slot)
        is_open = is_open & (holds == 0)
        place = tl.where(place + 1 == size, 0, place + 1)
    tl.store(found + lane, slot, mask=is_id)


@triton.jit(do_not_specialize=["num"])
@no_type_check
def put_kernel(entries, ids, slots, num, size, HAS_SLOTS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Probe until an empty entry is taken."""
    lane = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    key = tl.load(ids + lane, mask=lane < num, other=-1)
    is_open = key >= 0
    if HAS_SLOTS:
        slot = tl.load(slots + lane, mask=is_open, other=0).to(tl.int32)
    else:
        slot = lane.to(tl.int32)
    place = _home(key, size)
    while tl.max(is_open.to(tl.int32), axis=0) > 0:
        # Lanes that are done compare with a number that no entry is.
        seen = tl.atomic_cas(
            entries + place, tl.where(is_open, -1, -2), tl.where(is_open, slot, -2)
        )
        is_open = is_open & (seen != -1)
        place = tl.where(place + 1 == size, 0, place + 1)
