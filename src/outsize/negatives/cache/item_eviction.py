"""Which item of a full negative cache gives way to a new one, by name in `ITEM_EVICTION`.

Rows are stamped, and the oldest stamp is evicted. What a policy decides is which writes stamp a row
again, and it knows what share of the time an item is then held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

Occupancy = Callable[[Tensor, float], Tensor]


@dataclass(frozen=True)
class ItemEviction:
    """A policy of eviction.

    Attributes:
        renews: Whether an item that is pushed again, or written back, becomes the newest.
        occupancy: Shares of all pushes and a time T in pushes → the probability that an item is
            held, by Che's approximation with T as its characteristic time.
    """

    renews: bool
    occupancy: Occupancy


def prob_drawn(shares: Float64[Tensor, " n"], num: float) -> Float64[Tensor, " n"]:
    """The probability that an item is among `num` independent draws: 1 − (1 − q)^num."""
    return -torch.expm1(num * torch.log1p(-shares))


def fifo_occupancy(shares: Float64[Tensor, " n"], time: float) -> Float64[Tensor, " n"]:
    """The share of time that an item is held if it stays for `time` pushes each time it enters."""
    return shares * time / (1 + shares * time)


ITEM_EVICTION: dict[str, ItemEviction] = {
    "fifo": ItemEviction(renews=False, occupancy=fifo_occupancy),
    "lru": ItemEviction(renews=True, occupancy=prob_drawn),
}
