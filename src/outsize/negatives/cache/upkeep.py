"""Upkeep of a negative cache: what each commit writes back, adds and re-encodes."""

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
from outsize.ranks.failures import failing_in_group


@dataclass(frozen=True)
class Upkeep:
    """What a commit does to the cache besides writing back drawn items.

    Attributes:
        feed: Which items enter the cache.
        refresh: ρ, the share of the held items that is re-encoded per step, the oldest first.
        warmup_steps: Steps with in-batch negatives only, while embeddings still change too fast for
            a cache to be useful. The commit of the last one fills the cache from its feed, or
            re-encodes the positives it holds.
        num_at_once: Items that a refresh encodes at a time; `ENCODED_AT_ONCE` by default. The same
            on all ranks.
    """

    feed: Feed = field(default_factory=PositivesFeed)
    refresh: float = 0.0
    warmup_steps: int = 0
    num_at_once: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.refresh <= 1:
            raise ConfigError(f"refresh must be from 0 to 1, but got {self.refresh}")


class CacheUpdater:
    """Updates a cache after each step.

    Args:
        cache: The cache.
        encode: The encoder of its items.
        upkeep: What to do at each commit.
    """

    def __init__(self, cache: ItemCache, encode: EncodeItems, upkeep: Upkeep) -> None:
        self._cache = cache
        self._encode = encode
        self._upkeep = upkeep

    @property
    def is_warming_up(self) -> bool:
        """Whether the warm-up is on: nothing is drawn from the cache yet."""
        return self._cache.clock < self._upkeep.warmup_steps

    def begin(self) -> None:
        """Fill the cache from its feed. With a warm-up, that happens at its end instead."""
        self._upkeep.feed.require_room(self._cache)
        if not self.is_warming_up:
            self._upkeep.feed.begin(self._cache)

    def commit(
        self,
        positives: HeldItems,
        embeddings: Float[Tensor, "batch dim"],
        draw: Draw | None,
        drawn: Float[Tensor, "batch k dim"] | None,
    ) -> PushReport:
        """End a step: write back, push, refresh. If it raises, no rank's cache has changed.

        If a stop is requested during the refresh, everything but the refresh is committed, and
        `StopRequested` is raised. Call `refresh` later to complete the step.

        Args:
            positives: The positives of the step.
            embeddings: Their fresh embeddings.
            draw: The draw of the step; `None` during the warm-up.
            drawn: Fresh embeddings of the drawn items.
        """
        feed, pushed, stop = self._upkeep.feed, PushReport(0, 0, 0), None
        with self._cache.all_or_nothing():
            if self.is_warming_up:
                self._cache.commit()
            else:
                encoded = () if feed.needs_positives else (positives.keys, embeddings)
                self._cache.commit(draw, drawn, *encoded)
            was_warmup_step = self._cache.clock <= self._upkeep.warmup_steps
            if feed.needs_positives or not was_warmup_step:
                pushed = feed.feed(self._cache, positives, embeddings)
            try:
                self.refresh()
            except StopRequested as asked:
                stop = asked
        if stop is not None:
            raise stop
        return pushed

    def refresh(self) -> None:
        """Sweep the oldest items; after the last warm-up step, fill or re-encode the cache.

        If it raises or is stopped, nothing is written, and it can be called again.
        """
        with self._cache.all_or_nothing():
            if self._cache.clock > self._upkeep.warmup_steps:
                self._sweep()
            elif self._upkeep.warmup_steps and not self.is_warming_up:
                self._upkeep.feed.begin(self._cache)
                num_stale = int((self._cache.ages() > 0).sum())
                self._refresh(num_stale, self._cache.num_items_here)

    def _sweep(self) -> None:
        """Re-encode the oldest items: ρ·held per step, on average if that is not an integer."""
        if not self._upkeep.refresh:
            return
        share, clock = self._upkeep.refresh * self._cache.num_held_here, self._cache.clock
        most = int(self._upkeep.refresh * self._cache.num_items_here) + 1
        self._refresh(int(share * clock) - int(share * (clock - 1)), most)

    @torch.no_grad()
    def _refresh(self, num: int, most: int) -> None:
        """Re-encode the oldest items in chunks, in evaluation mode.

        If a stop is requested, it raises `StopRequested` between chunks.

        Args:
            num: Number of items on this rank.
            most: The largest number on any rank. All ranks encode the same number of chunks,
                because the encoder may be collective.
        """
        due, cache = self._cache.oldest(num), self._cache
        size = self._upkeep.num_at_once or contract.ENCODED_AT_ONCE
        parts = [torch.empty(0, cache.dim, device=cache.device)]
        with failing_in_group(cache.ranks, cache.device), evaluation_mode(self._encode):
            for start in range(0, most, size):
                if start:
                    check_stop_together(cache.device)
                place = slice(start, start + size)
                if start < num or cache.shard.count > 1:
                    features = {name: values[place] for name, values in due.features.items()}
                    parts.append(self._encode(features).float())
        cache.rewrite(due, torch.cat(parts))
