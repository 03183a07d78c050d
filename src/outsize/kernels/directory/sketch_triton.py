"""The passes of `CountMinSketch` on CUDA; buckets are those of `outsize.hashing.hash_ids`.

Amounts are not negative, so their order is that of their bits, which integers have atomic maxima
for.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.kernels.launches_triton import ceil_div, launch
from outsize.kernels.launching import on_device

_BLOCK_SIZE = 128


def estimate_by_triton(
    amounts: Float32[Tensor, " buckets"], hashes: Int64[Tensor, "hashes 9"], ids: Tensor
) -> Float32[Tensor, " n"]:
    """The least amount in the buckets of each id."""
    found = torch.empty(ids.shape[0], device=ids.device)
    if ids.shape[0]:
        with on_device(ids):
            launch(
                estimate_kernel, _grid(ids),
                (amounts, hashes, ids.contiguous(), found, *_sizes(amounts, hashes, ids)),
                NUM_HASHES=hashes.shape[0], BLOCK_SIZE=_BLOCK_SIZE,
            )  # fmt: skip
    return found


def lift_by_triton(
    amounts: Float32[Tensor, " buckets"],
    hashes: Int64[Tensor, "hashes 9"],
    ids: Int64[Tensor, " n"],
    given: Float32[Tensor, " n"],
) -> None:
    """Raise the buckets of each id to at least an amount."""
    if ids.shape[0]:
        with on_device(ids):
            launch(
                lift_kernel, _grid(ids),
                (amounts.view(torch.int32), hashes, ids.contiguous(),
                 given.contiguous().view(torch.int32), *_sizes(amounts, hashes, ids)),
                NUM_HASHES=hashes.shape[0], BLOCK_SIZE=_BLOCK_SIZE,
            )  # fmt: skip


def count_uses_by_triton(
    amounts: Float32[Tensor, " buckets"],
    hashes: Int64[Tensor, "hashes 9"],
    ids: Int64[Tensor, " n"],
    slots: Int64[Tensor, " n"],
    worth: Float32[Tensor, " num_slots"],
    amount: float,
) -> None:
    """Add an amount to the worth of each slot, or to the id if its slot is negative."""
    if ids.shape[0]:
        counted = torch.empty(ids.shape[0], device=ids.device)
        with on_device(ids):
            launch(
                count_kernel, _grid(ids),
                (amounts, hashes, ids.contiguous(), slots.contiguous(), worth, amount, counted,
                 *_sizes(amounts, hashes, ids)),
                NUM_HASHES=hashes.shape[0], BLOCK_SIZE=_BLOCK_SIZE,
            )  # fmt: skip
        lift_by_triton(amounts, hashes, ids, counted)


def _grid(ids: Tensor) -> tuple[int]:
    return (ceil_div(ids.shape[0], _BLOCK_SIZE),)


def _sizes(amounts: Tensor, hashes: Tensor, ids: Tensor) -> tuple[int, int]:
    return amounts.shape[0] // hashes.shape[0], ids.shape[0]


@triton.jit
@no_type_check
def _mixed(key):
    word = (key ^ ((key >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    word = (word ^ ((word >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return word ^ ((word >> 31) & 0x1FFFFFFFF)


@triton.jit
@no_type_check
def _bucket(mixed, hashes, j, num_buckets):
    low, high = mixed & 0xFFFFFFFF, (mixed >> 32) & 0xFFFFFFFF
    words = hashes + 9 * j
    value = tl.load(words) * low + tl.load(words + 1) * high + tl.load(words + 2)
    return ((((value >> 32) & 0xFFFFFFFF) * num_buckets) >> 32) + j * num_buckets


@triton.jit
@no_type_check
def _least(amounts, hashes, key, is_id, num_buckets, NUM_HASHES: tl.constexpr):
    mixed = _mixed(key)
    least = tl.load(amounts + _bucket(mixed, hashes, 0, num_buckets), mask=is_id, other=0.0)
    for j in tl.static_range(1, NUM_HASHES):
        found = tl.load(amounts + _bucket(mixed, hashes, j, num_buckets), mask=is_id, other=0.0)
        least = tl.minimum(least, found)
    return least


@triton.jit(do_not_specialize=["num"])
@no_type_check
def estimate_kernel(
    amounts, hashes, ids, found, num_buckets, num,
    NUM_HASHES: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """The least amount in the buckets of an id."""
    lane = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    is_id = lane < num
    key = tl.load(ids + lane, mask=is_id, other=0)
    least = _least(amounts, hashes, key, is_id, num_buckets, NUM_HASHES)
    tl.store(found + lane, least, mask=is_id)


@triton.jit(do_not_specialize=["num"])
@no_type_check
def lift_kernel(
    bits, hashes, ids, given, num_buckets, num,
    NUM_HASHES: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Raise the buckets of an id."""
    lane = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    key = tl.load(ids + lane, mask=lane < num, other=0)
    amount = tl.load(given + lane, mask=lane < num, other=0)
    mixed = _mixed(key)
    for j in tl.static_range(NUM_HASHES):
        place = _bucket(mixed, hashes, j, num_buckets)
        tl.atomic_max(bits + place, amount, mask=amount > 0, sem="relaxed")


@triton.jit(do_not_specialize=["num"])
@no_type_check
def count_kernel(
    amounts, hashes, ids, slots, worth, amount, counted, num_buckets, num,
    NUM_HASHES: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Estimates are all read before any bucket is raised: `counted` is for the next kernel."""
    lane = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    is_id = lane < num
    key = tl.load(ids + lane, mask=is_id, other=0)
    slot = tl.load(slots + lane, mask=is_id, other=0)
    is_copy = is_id & (slot >= 0)
    known = tl.load(worth + slot, mask=is_copy, other=0.0)
    tl.store(worth + slot, known + amount, mask=is_copy)
    least = _least(amounts, hashes, key, is_id & (slot < 0), num_buckets, NUM_HASHES)
    tl.store(counted + lane, tl.where(slot < 0, least + amount, 0.0), mask=is_id)
