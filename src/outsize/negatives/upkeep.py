"""How a negative cache is kept: what a commit writes back, lets in and encodes anew."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from outsize.errors import ConfigError
from outsize.negatives.across_ranks import raising_together
from outsize.negatives.contract import EncodeItems
from outsize.negatives.draw import Draw, HeldItems
from outsize.negatives.evaluation_mode import evaluation_mode
from outsize.negatives.feeds import Feed, PositivesFeed
from outsize.negatives.item_cache import ItemCache, PushReport

_REFRESH_SIZE = 8192  # items encoded at a time when a whole cache is refreshed


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

        Args:
            positives: The step's positives.
            embeddings: What they were encoded to.
            draw: What was drawn; nothing while warming up.
            drawn: What that was encoded to.
        """
        with self._cache.all_or_nothing():
            if self.is_warming_up:
                return self._warm_up(positives, embeddings)
            feed = self._upkeep.feed
            encoded = () if feed.needs_positives else (positives.keys, embeddings)
            self._cache.commit(draw, drawn, *encoded)
            pushed = feed.feed(self._cache, positives, embeddings)
            if self._upkeep.refresh:
                self._sweep()
            return pushed

    def _warm_up(self, positives: HeldItems, embeddings: Tensor) -> PushReport:
        """Nothing is encoded until the last step, when everything is."""
        self._cache.commit()
        feed, pushed = self._upkeep.feed, PushReport(0, 0, 0)
        if feed.needs_positives:
            pushed = feed.feed(self._cache, positives, embeddings)
        if not self.is_warming_up:
            feed.begin(self._cache)
            self._refresh_all()
        return pushed

    def _sweep(self) -> None:
        """Encode the oldest items anew: ρ·held a step, on average where that is no integer."""
        share, clock = self._upkeep.refresh * self._cache.num_held_here, self._cache.clock
        self._refresh(int(share * clock) - int(share * (clock - 1)))

    def _refresh_all(self) -> None:
        """Encode anew what is not from this step; all ranks as many times."""
        num_stale = int((self._cache.ages() > 0).sum())
        for start in range(0, self._cache.num_items_here, _REFRESH_SIZE):
            self._refresh(min(_REFRESH_SIZE, max(0, num_stale - start)))

    @torch.no_grad()
    def _refresh(self, num: int) -> None:
        """Encode the oldest items anew, in evaluation mode."""
        due = self._cache.oldest(num)
        embeddings = torch.empty(0, self._cache.dim, device=self._cache.device)
        with raising_together(self._cache.ranks, self._cache.device), evaluation_mode(self._encode):
            if len(due.keys) or self._cache.shard.count > 1:  # encoding may be a meeting of all
                embeddings = self._encode(due.features)
        self._cache.rewrite(due, embeddings)
