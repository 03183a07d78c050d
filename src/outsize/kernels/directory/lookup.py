"""What a cache of items asks about its rows for every batch: where keys are, and what rows hold.

Written with torch each is a dozen small steps, which on a GPU take longer to launch than to do; on
CUDA each is one Triton kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.kernels.available import has_triton

NO_KEY = -1  # keys are >= 0; this one stands for an empty row, or for nothing in a list of keys


class SortedKeys(NamedTuple):
    """Keys in order, and the row that each was written to; of equal keys the last one counts."""

    keys: Int64[Tensor, " n"]
    rows: Int64[Tensor, " n"]


def rows_holding(
    keys: Int64[Tensor, "*shape"], held: Int64[Tensor, " rows"], lists: Sequence[SortedKeys]
) -> Int64[Tensor, "*shape"]:
    """The row that holds each key, −1 where none does, and for `NO_KEY`.

    Args:
        keys: What is looked for.
        held: The key in each row. What lists say counts only where it still holds.
        lists: Where to look; the last one that knows a key decides.
    """
    if keys.is_cuda and has_triton():
        from outsize.kernels.directory.lookup_triton import rows_holding_by_triton

        return rows_holding_by_triton(keys, held, lists)
    found = torch.full_like(keys, -1)
    for listed in lists:
        if listed.keys.shape[0]:
            place = torch.searchsorted(listed.keys, keys.contiguous(), right=True) - 1
            row = listed.rows[place.clamp_min_(0)]
            holds = (held[row] == keys) & (keys != NO_KEY)
            found = torch.where(holds, row, found)
    return found


def keys_and_ages(
    rows: Int64[Tensor, "*shape"],
    held: Int64[Tensor, " rows"],
    encoded_at: Int64[Tensor, " rows"],
    clock: int,
) -> tuple[Int64[Tensor, "*shape"], Int64[Tensor, "*shape"]]:
    """The key in each row and how long ago it was encoded; `NO_KEY` and 0 for row −1."""
    if rows.is_cuda and has_triton():
        from outsize.kernels.directory.lookup_triton import keys_and_ages_by_triton

        return keys_and_ages_by_triton(rows, held, encoded_at, clock)
    is_row = rows >= 0
    keys, ages = held[rows], clock - encoded_at[rows]
    return torch.where(is_row, keys, NO_KEY), torch.where(is_row, ages, 0)
