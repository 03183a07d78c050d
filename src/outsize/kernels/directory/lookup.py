"""Look-ups in a cache of items, for every batch: the row of a key, and the key and age of a row.

In torch each look-up is a dozen small operations, whose launches take longer than their work on a
GPU. On CUDA each is one Triton kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.kernels.available import uses_triton

NO_KEY = -1  # keys are >= 0; this one marks an empty row, or padding in a list of keys


class SortedKeys(NamedTuple):
    """Sorted keys, and the row that each was written to; of equal keys the last one is valid."""

    keys: Int64[Tensor, " n"]
    rows: Int64[Tensor, " n"]


def rows_holding(
    keys: Int64[Tensor, "*shape"], held: Int64[Tensor, " rows"], lists: Sequence[SortedKeys]
) -> Int64[Tensor, "*shape"]:
    """The row that holds each key; −1 if there is none, and for `NO_KEY`.

    Args:
        keys: The keys to look up.
        held: The key in each row. An entry of a list is valid only if its row still holds the key.
        lists: The lists to search; the last one with a valid entry applies.
    """
    if uses_triton(keys):
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
    step: int,
) -> tuple[Int64[Tensor, "*shape"], Int64[Tensor, "*shape"]]:
    """The key of each row and its age, in steps since it was encoded; `NO_KEY` and 0 for row −1."""
    if uses_triton(rows):
        from outsize.kernels.directory.lookup_triton import keys_and_ages_by_triton

        return keys_and_ages_by_triton(rows, held, encoded_at, step)
    is_row = rows >= 0
    keys, ages = held[rows], step - encoded_at[rows]
    return torch.where(is_row, keys, NO_KEY), torch.where(is_row, ages, 0)
