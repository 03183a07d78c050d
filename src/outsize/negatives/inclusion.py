"""How likely a cache that is fed by what happens to be used holds an item.

Items that are pushed with unequal frequency are held with unequal chance πⱼ, and each held one
stands for 1/πⱼ items of the corpus (the logQ correction, and the general form of Lemma 4's 1/α).
For independent pushes and a cache of C items, Che's approximation has one characteristic time T:
an item is held with chance 1 − exp(−fⱼT) where a push renews its turn ("lru"), and fⱼT/(1 + fⱼT)
where it does not ("fifo"), T such that the chances add up to C.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Num
from torch import Tensor

from outsize.errors import ConfigError

_HALVINGS = 200


def log_inclusion(
    frequencies: Num[Tensor, " items"], num_held: int, eviction: str = "fifo"
) -> Float[Tensor, " items"]:
    """The log of πⱼ for each item; 0 where the cache has room for every item that is pushed.

    Args:
        frequencies: How often each item is pushed, in any unit; −∞ comes out for those that
            never are.
        num_held: Items the cache has room for.
        eviction: "fifo" or "lru".
    """
    shares = frequencies.double()
    if not (shares >= 0).all() or not shares.sum() > 0:
        raise ConfigError("frequencies must be >= 0, and one of them > 0")
    shares = shares / shares.sum()
    if num_held >= int((shares > 0).sum()):
        return torch.where(shares > 0, 0.0, -torch.inf).float()
    low, high = 0.0, 1.0
    while _chances(shares, high, eviction).sum() < num_held:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        is_short = bool(_chances(shares, middle, eviction).sum() < num_held)
        low, high = (middle, high) if is_short else (low, middle)
    return _chances(shares, high, eviction).log().float()


def _chances(shares: Float64[Tensor, " items"], time: float, eviction: str) -> Tensor:
    if eviction == "lru":
        return -torch.expm1(-shares * time)
    return shares * time / (1 + shares * time)
