"""Read a batch through a cache from rows at hand: refresh what is stale, and return all rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float32, Int32, Int64
from torch import Tensor

from outsize.kernels.available import uses_triton
from outsize.kernels.copies.compaction import marked_places
from outsize.kernels.copies.passes import MOST_COLUMNS, CopyLines


class OwnerLines(NamedTuple):
    """All rows of an owner, in place."""

    rows: Float[Tensor, "rows dim"]
    clocks: Int32[Tensor, " rows"]
    state: Mapping[str, Float32[Tensor, "rows _"]]


def read_through(
    copies: CopyLines,
    state: Mapping[str, Float32[Tensor, "slots _"]],
    owner: OwnerLines,
    ids: Int64[Tensor, " n"],
    slots: Int64[Tensor, " n"],
    stale: Bool[Tensor, " n"],
    num_refreshed: int,
) -> tuple[Float[Tensor, "n dim"], Int64[Tensor, " n"]]:
    """Replace stale copies by their owner's rows; returns all rows of a request and their clocks.

    Args:
        copies: The cache.
        state: Optimizer state of the copies.
        owner: The owner's rows.
        ids: The rows that are requested.
        slots: Their slots; rows without a copy, which are stale, are read from the owner.
        stale: Whether a row is read from its owner.
        num_refreshed: How many copies are stale.
    """
    if uses_triton(ids, copies.rows) and owner.rows.shape[1] <= MOST_COLUMNS:
        from outsize.kernels.copies.lines_triton import read_through_by_triton

        return read_through_by_triton(copies, state, owner, ids, slots, stale, num_refreshed)
    if num_refreshed:
        lines = marked_places((slots >= 0) & stale, num_refreshed)
        own, rows = slots.index_select(0, lines), ids.index_select(0, lines)
        copies.rows.index_copy_(0, own, owner.rows.index_select(0, rows))
        copies.clocks.index_copy_(0, own, owner.clocks.index_select(0, rows).long())
        for name, part in owner.state.items():
            state[name].index_copy_(0, own, part.index_select(0, rows))
    is_copy, own = slots >= 0, slots.clamp_min(0)
    seen = copies.clocks.index_select(0, own) + copies.ticks.index_select(0, own)
    clocks = torch.where(is_copy, seen, owner.clocks.index_select(0, ids))
    rows = torch.where(
        is_copy.unsqueeze(1), copies.rows.index_select(0, own), owner.rows.index_select(0, ids)
    )
    return rows, clocks
