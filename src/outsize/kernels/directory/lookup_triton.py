"""The look-ups of `lookup` on CUDA, one Triton kernel each.

Nothing here synchronizes the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Int64
from torch import Tensor

from outsize.kernels.directory.lookup import SortedKeys
from outsize.kernels.launches_triton import ceil_div, launch
from outsize.kernels.launching import on_device

_BLOCK_SIZE = 128
_CUTS = tl.constexpr(16)  # of a range that is searched


def rows_holding_by_triton(
    keys: Int64[Tensor, "*shape"], held: Int64[Tensor, " rows"], lists: Sequence[SortedKeys]
) -> Int64[Tensor, "*shape"]:
    """`rows_holding` for one or two lists."""
    keys = keys.contiguous()
    found = torch.empty_like(keys)
    long, short = lists[0], lists[-1]
    with on_device(keys):
        launch(
            rows_holding_kernel, (ceil_div(keys.numel(), _BLOCK_SIZE),),
            (keys, held, long.keys, long.rows, short.keys, short.rows, found, keys.numel(),
             len(long.keys), len(short.keys)),
            BLOCK_SIZE=_BLOCK_SIZE,
        )  # fmt: skip
    return found


def keys_and_ages_by_triton(
    rows: Int64[Tensor, "*shape"],
    held: Int64[Tensor, " rows"],
    encoded_at: Int64[Tensor, " rows"],
    step: int,
) -> tuple[Int64[Tensor, "*shape"], Int64[Tensor, "*shape"]]:
    """`keys_and_ages`."""
    rows = rows.contiguous()
    keys, ages = torch.empty_like(rows), torch.empty_like(rows)
    with on_device(rows):
        launch(
            keys_and_ages_kernel, (ceil_div(rows.numel(), _BLOCK_SIZE),),
            (rows, held, encoded_at, keys, ages, step, rows.numel()),
            BLOCK_SIZE=_BLOCK_SIZE,
        )  # fmt: skip
    return keys, ages


@triton.jit
@no_type_check
def row_in(key, is_key, held, listed, rows, num, found):
    """The row of each key in a sorted list, if it still holds the key; otherwise `found`."""
    low = tl.zeros_like(key)
    high = low + num
    left = num
    # Each load takes as long as many at a time: a range is cut at several places, not at one.
    while left > 0:
        stride = left // (_CUTS + 1) + 1
        place = low[:, None] + (tl.arange(0, _CUTS) + 1)[None, :] * stride - 1
        is_inside = is_key[:, None] & (place < high[:, None])
        other = tl.load(listed + place, mask=is_inside, other=0)
        passed = is_inside & (other <= key[:, None])
        low += tl.sum(passed.to(tl.int64), axis=1) * stride
        left = stride - 1
        high = tl.minimum(high, low + left)
    row = tl.load(rows + low - 1, mask=is_key & (low > 0), other=-1)
    holder = tl.load(held + row, mask=row >= 0, other=-1)
    return tl.where((row >= 0) & (holder == key), row, found)


@triton.jit(do_not_specialize=["num", "num_long", "num_short"])
@no_type_check
def rows_holding_kernel(
    keys,
    held,
    long_keys,
    long_rows,
    short_keys,
    short_rows,
    found,
    num,
    num_long,
    num_short,
    BLOCK_SIZE: tl.constexpr,
):
    """Look up a block of keys in a long and a short list."""
    place = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    key = tl.load(keys + place, mask=place < num, other=-1)
    is_key = key >= 0
    row = tl.full((BLOCK_SIZE,), -1, tl.int64)
    row = row_in(key, is_key, held, long_keys, long_rows, num_long, row)
    row = row_in(key, is_key, held, short_keys, short_rows, num_short, row)
    tl.store(found + place, row, mask=place < num)


@triton.jit(do_not_specialize=["step", "num"])
@no_type_check
def keys_and_ages_kernel(rows, held, encoded_at, keys, ages, step, num, BLOCK_SIZE: tl.constexpr):
    """Read the keys and ages of a block of rows."""
    place = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    row = tl.load(rows + place, mask=place < num, other=-1)
    is_row = row >= 0
    tl.store(keys + place, tl.load(held + row, mask=is_row, other=-1), mask=place < num)
    stamp = tl.load(encoded_at + row, mask=is_row, other=0)
    tl.store(ages + place, tl.where(is_row, step - stamp, 0), mask=place < num)
