"""`checked_ids` in one Triton kernel, which reads and writes ids once."""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Int64
from torch import Tensor

from outsize.kernels.launches_triton import ceil_div, launch
from outsize.kernels.launching import on_device

_BLOCK = 1024


def checked_by_triton(
    ids: Int64[Tensor, "n columns"],
    bounds: Int64[Tensor, " columns"],
    worst: Int64[Tensor, " columns"],
) -> Int64[Tensor, "n columns"]:
    """`checked_ids` of at least one id."""
    safe = torch.empty_like(ids, memory_format=torch.contiguous_format)
    with on_device(ids):
        launch(
            check_ids_kernel, (ceil_div(ids.numel(), _BLOCK),),
            (ids.contiguous(), bounds, worst, safe, ids.numel(), ids.shape[1]),
            BLOCK=_BLOCK,
        )  # fmt: skip
    return safe


@triton.jit(do_not_specialize=["num"])
@no_type_check
def check_ids_kernel(ids, bounds, worst, safe, num, num_columns, BLOCK: tl.constexpr):
    """Check a block of ids."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_inside = place < num
    column = place % num_columns
    found = tl.load(ids + place, mask=is_inside, other=0)
    bound = tl.load(bounds + column, mask=is_inside, other=1)
    is_bad = is_inside & ((found < 0) | (found >= bound))
    tl.atomic_max(worst + column, found, mask=is_bad, sem="relaxed")
    tl.store(safe + place, tl.where(is_bad, 0, found), mask=is_inside)
