"""Work without waiting for a GPU, which has to be asked how many lines are marked."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.kernels.available import uses_triton

_WAITING_DEVICES = ("cuda",)


def waits_for_counts(device: torch.device) -> bool:
    """Whether the host, to read a number from there, waits for all work that it has queued."""
    return device.type in _WAITING_DEVICES


def marked_places(mask: Bool[Tensor, " n"], num: int) -> Int64[Tensor, " num"]:
    """The places of the marked lines, ascending. `num` is their number.

    Unlike `mask.nonzero()`, it never waits for a GPU to learn how many there are.
    """
    n = mask.shape[0]
    if num == 0:
        return torch.empty(0, dtype=torch.int64, device=mask.device)
    if num == n:
        return torch.arange(n, device=mask.device)
    if uses_triton(mask):
        from outsize.kernels.copies.compaction_triton import MOST_LINES, marked_places_by_triton

        if n <= MOST_LINES:
            return marked_places_by_triton(mask, num)
    places = torch.empty(num + 1, dtype=torch.int64, device=mask.device)
    # All lines that are not marked go to the last place, which is cut off.
    every = torch.arange(n, device=mask.device)
    places.scatter_(0, torch.where(mask, mask.cumsum(0) - 1, num), every)
    return places[:num]


def places_of_slots(
    slots: Int64[Tensor, " n"], num: int
) -> tuple[Int64[Tensor, " num"], Int64[Tensor, " m"]]:
    """The places of slots that are not negative, and of those that are, ascending.

    `num` is the number of the former.
    """
    n = slots.shape[0]
    if num in (0, n):
        every, none = torch.arange(n, device=slots.device), slots[:0]
        return (every, none) if num else (none, every)
    return marked_places(slots >= 0, num), marked_places(slots < 0, n - num)
