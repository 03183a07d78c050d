"""Runs of equal ids on CUDA: the places of a batch sorted by id, without a synchronization.

All shapes depend on the number of ids alone, so these steps can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Int
from torch import Tensor

from outsize.kernels.distinct.distinct import Distinct, Runs
from outsize.kernels.launches_triton import ceil_div, launch
from outsize.kernels.launching import on_device

_BLOCK_SIZE = 1024


def sorted_runs(keys: Int[Tensor, " n"]) -> Runs:
    """Sort ids, of a `key_type`."""
    found, order = torch.sort(keys, stable=True)
    is_new = torch.empty_like(found, dtype=torch.int32)
    if num := keys.shape[0]:
        with on_device(keys):
            launch(
                mark_new_kernel, (ceil_div(num, _BLOCK_SIZE),),
                (found, is_new, num),
                BLOCK_SIZE=_BLOCK_SIZE,
            )  # fmt: skip
    return Runs(found, order, torch.cumsum(is_new, 0, dtype=torch.int32))


def distinct_by_triton(keys: Int[Tensor, " n"]) -> Distinct:
    """`distinct`, of ids of a `key_type`; synchronizes once, for the number of distinct ids."""
    found = sorted_runs(keys)
    num = found.num
    size = int(found.runs[-1]) + 1 if num else 0
    ids = torch.empty(size, dtype=torch.int64, device=keys.device)
    inverse = torch.empty(num, dtype=torch.int64, device=keys.device)
    if num:
        with on_device(keys):
            launch(
                list_distinct_kernel, (ceil_div(num, _BLOCK_SIZE),),
                (found.keys, found.order, found.runs, ids, inverse, num),
                BLOCK_SIZE=_BLOCK_SIZE,
            )  # fmt: skip
    return Distinct(ids, inverse, runs=found)


@triton.jit(do_not_specialize=["num"])
@no_type_check
def list_distinct_kernel(keys, order, runs, ids, inverse, num, BLOCK_SIZE: tl.constexpr):
    """The distinct ids, and the place in them of each of a block of sorted ids."""
    place = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    is_inside = place < num
    run = tl.load(runs + place, mask=is_inside, other=0)
    before = tl.load(runs + place - 1, mask=is_inside & (place > 0), other=-1)
    key = tl.load(keys + place, mask=is_inside, other=0)
    tl.store(ids + run, key.to(tl.int64), mask=is_inside & (run != before))
    tl.store(inverse + tl.load(order + place, mask=is_inside, other=0), run, mask=is_inside)


@triton.jit(do_not_specialize=["num"])
@no_type_check
def mark_new_kernel(keys, is_new, num, BLOCK_SIZE: tl.constexpr):
    """Whether each of a block of sorted ids differs from the one before; the first does not."""
    place = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    key = tl.load(keys + place, mask=place < num, other=0)
    before = tl.load(keys + place - 1, mask=(place > 0) & (place < num), other=0)
    differs = (place > 0) & (key != before)
    tl.store(is_new + place, differs.to(tl.int32), mask=place < num)
