"""How a negative cache is kept: what a commit writes back, lets in and encodes anew."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from outsize.errors import ConfigError
from outsize.interrupts import StopRequested
from outsize.negatives import contract
from outsize.negatives.cache.contract import ItemCache, PushReport
from outsize.negatives.cache.draw import Draw, HeldItems
from outsize.negatives.cache.feeds import Feed, PositivesFeed
from outsize.negatives.contract import EncodeItems
from outsize.negatives.evaluation_mode import evaluation_mode
from outsize.ranks.collectives import check_stop_together
from outsize.ranks.gathering import raising_together


@dataclass(frozen=True)
class Upkeep:
    """What happens to the cache at a commit, besides that drawn items are rewritten.

    Attributes:
        feed: Which items come in.
        refresh: ρ, the share of the held items that is swept a step, the oldest first.
        warmup_steps: Steps in which queries are compared within the batch only, while embeddings
            still change too fast to be worth keeping. The commit of the last of them encodes what
            the cache then holds: a corpus and a stream are filled in there, once.
    """

    feed: Feed = field(default_factory=PositivesFeed)
    refresh: float = 0.0
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.refresh <= 1:
            raise ConfigError(f"refresh must be from 0 to 1, but got {self.refresh}")


class CacheKeeper:
    """Keeps one cache, step by step.

    Args:
        cache: The cache.
        encode: How its items are encoded anew.
        upkeep: What is done to it.
    """

    def __init__(self, cache: ItemCache, encode: EncodeItems, upkeep: Upkeep) -> None:
        self._cache = cache
        self._encode = encode
        self._upkeep = upkeep

    @property
    def is_warming_up(self) -> bool:
        """Whether it is too early to draw from the cache."""
        return self._cache.clock < self._upkeep.warmup_steps

    def begin(self) -> None:
        """Fill the cache, where its feed has what to fill it with; not before it counts."""
        self._upkeep.feed.require_room(self._cache)
        if not self.is_warming_up:
            self._upkeep.feed.begin(self._cache)

    def keep(
        self,
        positives: HeldItems,
        embeddings: Float[Tensor, "batch dim"],
        draw: Draw | None,
        drawn: Float[Tensor, "batch k dim"] | None,
    ) -> PushReport:
        """End a step; if that raises, the cache is as it was, on all ranks.

        Where a stop is asked for while items are encoded anew, none of those is written, and
        `StopRequested` is raised: `refresh` is left to be done.

        Args:
            positives: The step's positives.
            embeddings: What they were encoded to.
            draw: What was drawn; nothing while warming up.
            drawn: What that was encoded to.
        """
        feed, pushed, stop = self._upkeep.feed, PushReport(0, 0, 0), None
        with self._cache.all_or_nothing():
            if self.is_warming_up:
                self._cache.commit()
            else:
                encoded = () if feed.needs_positives else (positives.keys, embeddings)
                self._cache.commit(draw, drawn, *encoded)
            if feed.needs_positives or not self._is_in_warm_up_step:
                pushed = feed.feed(self._cache, positives, embeddings)
            try:
                self.refresh()
            except StopRequested as asked:
                stop = asked
        if stop is not None:
            raise stop
        return pushed

    def refresh(self) -> None:
        """What a step encodes last: a sweep, or the whole cache in the last step of warm-up.

        Nothing is written if it raises or is stopped, so that it can be done again.
        """
        with self._cache.all_or_nothing():
            if self._cache.clock > self._upkeep.warmup_steps:
                self._sweep()
            elif self._upkeep.warmup_steps and not self.is_warming_up:
                self._upkeep.feed.begin(self._cache)
                num_stale = int((self._cache.ages() > 0).sum())
                self._refresh(num_stale, self._cache.num_items_here)

    @property
    def _is_in_warm_up_step(self) -> bool:
        """Whether the step that has just been counted was one of warm-up."""
        return self._cache.clock <= self._upkeep.warmup_steps

    def _sweep(self) -> None:
        """Encode the oldest items anew: ρ·held per step, on average where that is no integer."""
        if not self._upkeep.refresh:
            return
        share, clock = self._upkeep.refresh * self._cache.num_held_here, self._cache.clock
        most = int(self._upkeep.refresh * self._cache.num_items_here) + 1
        self._refresh(int(share * clock) - int(share * (clock - 1)), most)

    @torch.no_grad()
    def _refresh(self, num: int, most: int) -> None:
        """Encode the oldest items anew, in evaluation mode, in pieces between which it may stop.

        Args:
            num: How many.
            most: The most that any rank has; all encode as many pieces, as that may be a meeting.
        """
        due, cache = self._cache.oldest(num), self._cache
        parts = [torch.empty(0, cache.dim, device=cache.device)]
        with raising_together(cache.ranks, cache.device), evaluation_mode(self._encode):
            for start in range(0, most, contract.ENCODED_AT_ONCE):
                if start:
                    check_stop_together(cache.device)
                place = slice(start, start + contract.ENCODED_AT_ONCE)
                if start < num or cache.shard.count > 1:
                    features = {name: values[place] for name, values in due.features.items()}
                    parts.append(self._encode(features).float())
        cache.rewrite(due, torch.cat(parts))
