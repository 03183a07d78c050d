"""How likely a cache that is fed by what happens to be used holds an item.

Items that are pushed with unequal frequency are held with unequal chance πⱼ, and each held one
stands for 1/πⱼ items of the corpus (the logQ correction, and the general form of Lemma 4's 1/α).
Pushes are taken for independent, an item with share qⱼ of them. After n pushes into a cache of C:

- while it fills, it holds what was pushed at least once: πⱼ(n) = 1 − (1 − qⱼ)ⁿ. It is full after
  about T₀ pushes, T₀ such that these chances add up to C;
- long after, Che's approximation has one characteristic time T for all items: πⱼ = 1 − (1 − qⱼ)ᵀ
  where a push renews its turn ("lru"), so that T = T₀, and πⱼ = qⱼT/(1 + qⱼT) where it does not
  ("fifo"), T such that the chances add up to C;
- between T₀ and T, which a "fifo" cache needs to forget how it was filled, a mean of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Float64, Int64, Num
from torch import Tensor

from outsize.errors import ConfigError

_HALVINGS = 200
_SURE = 1e-6  # an item that is missing with less chance is taken for held


def log_drawn(shares: Float64[Tensor, " items"], num: float) -> Float64[Tensor, " items"]:
    """The log of 1 − (1 − q)^num: that an item with share q is among `num` independent draws.

    Exact also where q is far below the precision of 1 − q; −∞ for an item that is never drawn.
    """
    return _drawn(shares, num).log()


def log_inclusion(
    frequencies: Num[Tensor, " items"],
    num_held: int,
    eviction: str = "fifo",
    num_pushed: int | None = None,
) -> Float[Tensor, " items"]:
    """The log of πⱼ for each item; 0 where the cache has room for every item that is pushed.

    Args:
        frequencies: How often each item is pushed, in any unit; −∞ comes out for those that
            never are.
        num_held: Items the cache has room for.
        eviction: "fifo" or "lru".
        num_pushed: Items pushed so far, at least 1; `None` for long after the cache is full.
    """
    chances = InclusionChances(frequencies, num_held, eviction)
    keys = torch.arange(len(frequencies), device=frequencies.device)
    return chances.log_chances(keys, math.inf if num_pushed is None else num_pushed)


class InclusionChances:
    """The chance of each item to be held, by how many were pushed so far.

    Args:
        frequencies: How often each item is pushed, in any unit, by key.
        num_held: Items the cache has room for.
        eviction: "fifo" or "lru".

    Attributes:
        full_at: T₀, the pushes that fill the cache; ∞ where it has room for every item.
        steady_at: T, from which on chances do not change.
    """

    def __init__(
        self, frequencies: Num[Tensor, " items"], num_held: int, eviction: str = "fifo"
    ) -> None:
        frequencies = frequencies.double()
        if not (frequencies >= 0).all() or not frequencies.sum() > 0:
            raise ConfigError("frequencies must be >= 0, and one of them > 0")
        # Items of one frequency have one chance, and there are few frequencies.
        distinct, self._class_of = torch.unique(frequencies, return_inverse=True)
        counts = torch.bincount(self._class_of, minlength=len(distinct)).double()
        self._shares = distinct / frequencies.sum()
        self._is_lru = eviction == "lru"
        if num_held >= int(counts[distinct > 0].sum()):
            rarest = self._shares[self._shares > 0].min()
            self.full_at, self.steady_at = math.inf, _sure_after(float(rarest))
            return
        self.full_at = self.steady_at = _time(_drawn, self._shares, counts, num_held)
        if not self._is_lru:
            self.steady_at = _time(_held_by_turns, self._shares, counts, num_held)

    def log_chances(self, keys: Int64[Tensor, " n"], num_pushed: float) -> Float[Tensor, " n"]:
        """The log of πⱼ of some items, once so many were pushed."""
        return self._chances(num_pushed).log().float()[self._class_of[keys]]

    def to(self, device: torch.device) -> InclusionChances:
        """The same, answering on a device."""
        self._class_of, self._shares = self._class_of.to(device), self._shares.to(device)
        return self

    def _chances(self, num_pushed: float) -> Float64[Tensor, " classes"]:
        if num_pushed <= self.full_at and num_pushed < self.steady_at:
            return _drawn(self._shares, num_pushed)
        if self.full_at == math.inf:
            return torch.where(self._shares > 0, 1.0, 0.0).double()
        full = _drawn(self._shares, self.full_at)
        if self._is_lru:
            return full
        steady = _held_by_turns(self._shares, self.steady_at)
        passed = (num_pushed - self.full_at) / max(self.steady_at - self.full_at, 1.0)
        mixed: Tensor = torch.lerp(full, steady, min(1.0, passed))
        return mixed


def _drawn(shares: Float64[Tensor, " n"], num: float) -> Float64[Tensor, " n"]:
    return -torch.expm1(num * torch.log1p(-shares))


def _held_by_turns(shares: Float64[Tensor, " n"], time: float) -> Float64[Tensor, " n"]:
    """The share of time an item is held that stays for `time` pushes and returns when pushed."""
    return shares * time / (1 + shares * time)


def _sure_after(share: float) -> float:
    """Pushes after which an item of this share has been pushed for sure."""
    return 1.0 if share >= 1 else math.log(_SURE) / math.log1p(-share)


def _time(
    chances: Callable[[Tensor, float], Tensor],
    shares: Float64[Tensor, " n"],
    counts: Float64[Tensor, " n"],
    num_held: int,
) -> float:
    """When the chances of all items add up to the items held."""
    low, high = 0.0, 1.0
    while (chances(shares, high) * counts).sum() < num_held:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        is_short = bool((chances(shares, middle) * counts).sum() < num_held)
        low, high = (middle, high) if is_short else (low, middle)
    return high
