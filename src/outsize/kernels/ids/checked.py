"""Ids that are safe to look up: those out of bounds become 0, and set a flag."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.kernels.available import uses_triton

NONE = torch.iinfo(torch.int64).min  # the worst of no bad ids


def checked_ids(
    ids: Int64[Tensor, "n columns"],
    bounds: Int64[Tensor, " columns"],
    worst: Int64[Tensor, " columns"],
) -> Int64[Tensor, "n columns"]:
    """The ids, with 0 for those out of bounds.

    Args:
        ids: The ids.
        bounds: The ids of a column are below its bound.
        worst: Raised to the greatest id of each column that is out of bounds.
    """
    if not ids.numel():
        return ids
    if uses_triton(ids, bounds, worst):
        from outsize.kernels.ids.checked_triton import checked_by_triton

        return checked_by_triton(ids, bounds, worst)
    bad = (ids < 0) | (ids >= bounds)
    torch.maximum(worst, torch.where(bad, ids, NONE).amax(dim=0), out=worst)
    return ids.masked_fill(bad, 0)
