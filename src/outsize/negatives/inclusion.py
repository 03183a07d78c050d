"""Inclusion probabilities: how likely a cache that is fed with positives holds an item.

Items that are pushed with unequal frequency are held with unequal probability πⱼ. Each held item
then stands for 1/πⱼ items of the corpus (the logQ correction; Lemma 4's 1/α is the uniform case).
Pushes are modelled as independent draws in which item j has share qⱼ. After n pushes into a cache
of C items:

- While the cache fills, it holds every item pushed at least once: πⱼ(n) = 1 − (1 − qⱼ)ⁿ. It is full
  after about T₀ pushes, where T₀ makes these probabilities sum to C.
- In the long run, Che's approximation gives one characteristic time T for all items. Under "lru", a
  push moves an item to the back of the eviction order: πⱼ = 1 − (1 − qⱼ)ᵀ, so T = T₀. Under "fifo"
  it does not: πⱼ = qⱼT/(1 + qⱼT), where T makes the probabilities sum to C.
- Between T₀ and T, while a "fifo" cache replaces its first filling, the two are interpolated.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64, Int64, Num
from torch import Tensor

from outsize.errors import ConfigError
from outsize.negatives.cache.item_eviction import ITEM_EVICTION, Occupancy, prob_drawn
from outsize.registries import require_known

_MAX_BISECTIONS = 200
_NEGLIGIBLE = 1e-6  # an item that is missing with a smaller probability counts as held


def log_prob_drawn(shares: Float64[Tensor, " items"], num: float) -> Float64[Tensor, " items"]:
    """Log-probability that an item with share q is among `num` independent draws.

    That is log(1 − (1 − q)^num), computed without cancellation for small q; −∞ for q = 0.
    """
    return prob_drawn(shares, num).log()


def log_inclusion(
    frequencies: Num[Tensor, " items"],
    num_held: int,
    eviction: str = "fifo",
    num_pushed: int | None = None,
) -> Float[Tensor, " items"]:
    """Log-probability that a cache holds each item: log πⱼ of the logQ correction.

    It is 0 if the cache has room for every item that is pushed, and −∞ for items that never are.

    Args:
        frequencies: How often each item is pushed, in any unit.
        num_held: Capacity of the cache, in items.
        eviction: A key of `ITEM_EVICTION`.
        num_pushed: Items pushed so far, at least 1; `None` for the long run.
    """
    probabilities = InclusionProbabilities(frequencies, num_held, eviction)
    keys = torch.arange(len(frequencies), device=frequencies.device)
    return probabilities.log_probabilities(keys, math.inf if num_pushed is None else num_pushed)


class InclusionProbabilities:
    """The probability that each item is held, as a function of the items pushed so far.

    Args:
        frequencies: How often each item is pushed, in any unit, by key.
        num_held: Capacity of the cache, in items.
        eviction: A key of `ITEM_EVICTION`.

    Attributes:
        full_at: T₀, the number of pushes that fill the cache; ∞ if it has room for every item.
        steady_at: T, the number of pushes after which probabilities no longer change.
    """

    def __init__(
        self, frequencies: Num[Tensor, " items"], num_held: int, eviction: str = "fifo"
    ) -> None:
        require_known("eviction", eviction, ITEM_EVICTION)
        frequencies = frequencies.double()
        if not (frequencies >= 0).all() or not frequencies.sum() > 0:
            raise ConfigError("frequencies must be >= 0, and one of them > 0")
        # Items of equal frequency have equal probability, and there are few distinct frequencies.
        distinct, self._class_of = torch.unique(frequencies, return_inverse=True)
        counts = torch.bincount(self._class_of, minlength=len(distinct)).double()
        self._shares = distinct / frequencies.sum()
        self._occupancy = ITEM_EVICTION[eviction].occupancy
        if num_held >= int(counts[distinct > 0].sum()):
            rarest = self._shares[self._shares > 0].min()
            self.full_at, self.steady_at = math.inf, _pushes_until_held(float(rarest))
            return
        self.full_at = _characteristic_time(prob_drawn, self._shares, counts, num_held)
        self.steady_at = _characteristic_time(self._occupancy, self._shares, counts, num_held)

    def log_probabilities(
        self, keys: Int64[Tensor, " n"], num_pushed: float
    ) -> Float[Tensor, " n"]:
        """The log of πⱼ of the given items after `num_pushed` pushes."""
        return self._probabilities(num_pushed).log().float()[self._class_of[keys]]

    def to(self, device: torch.device) -> InclusionProbabilities:
        """Move to a device, in place."""
        self._class_of, self._shares = self._class_of.to(device), self._shares.to(device)
        return self

    def _probabilities(self, num_pushed: float) -> Float64[Tensor, " classes"]:
        if num_pushed <= self.full_at and num_pushed < self.steady_at:
            return prob_drawn(self._shares, num_pushed)
        if self.full_at == math.inf:
            return torch.where(self._shares > 0, 1.0, 0.0).double()
        full = prob_drawn(self._shares, self.full_at)
        steady = self._occupancy(self._shares, self.steady_at)
        passed = (num_pushed - self.full_at) / max(self.steady_at - self.full_at, 1.0)
        mixed: Tensor = torch.lerp(full, steady, min(1.0, passed))
        return mixed


def _pushes_until_held(share: float) -> float:
    """Pushes after which an item with this share has almost surely been pushed."""
    return 1.0 if share >= 1 else math.log(_NEGLIGIBLE) / math.log1p(-share)


def _characteristic_time(
    probabilities: Occupancy,
    shares: Float64[Tensor, " n"],
    counts: Float64[Tensor, " n"],
    num_held: int,
) -> float:
    """The number of pushes at which the probabilities of all items sum to `num_held`."""
    low, high = 0.0, 1.0
    while (probabilities(shares, high) * counts).sum() < num_held:
        low, high = high, 2 * high
    for _ in range(_MAX_BISECTIONS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        is_short = bool((probabilities(shares, middle) * counts).sum() < num_held)
        low, high = (middle, high) if is_short else (low, middle)
    return high
