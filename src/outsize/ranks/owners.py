"""Routing of lines to the ranks that own them."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor


def places_by_owner(owners: Int64[Tensor, " n"], num_ranks: int) -> list[Int64[Tensor, " _"]]:
    """For each rank, the ascending positions of the lines it owns, given each line's owner."""
    order = owners.argsort(stable=True)
    return list(order.split(torch.bincount(owners, minlength=num_ranks).tolist()))
