"""Feeds, by name in `FEEDS`: which items enter a cache."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.errors import ConfigError
from outsize.hashing import derive_seed
from outsize.negatives.cache.contract import ItemCache, PushReport
from outsize.negatives.cache.draw import HeldItems
from outsize.negatives.cache.item_eviction import ITEM_EVICTION
from outsize.negatives.contract import ItemSource
from outsize.negatives.inclusion import InclusionProbabilities
from outsize.ranks.collectives import check_stop_together
from outsize.ranks.failures import failing_in_group

_NOTHING = PushReport(0, 0, 0)
_FILL_SIZE = 1 << 17  # items per push, so that the corpus is never held twice in float32


@dataclass(frozen=True)
class FeedSettings:
    """What a run file says of a cache and of what enters it.

    Attributes:
        num_items: Capacity of the cache; `None` for the whole corpus.
        eviction: A key of `ITEM_EVICTION`.
        num_new: Random items per step and rank.
        log_q: Whether to apply the logQ correction.
    """

    num_items: int | None
    eviction: str
    num_new: int
    log_q: bool


class Feed(ABC):
    """Decides which items enter a cache.

    Attributes:
        needs_positives: Whether the feed pushes the positives of each step. A feed with items of
            its own fills the cache once, when the warm-up is over.
        samples_corpus: Whether it pushes `num_new` items per step, of which the cache then holds a
            uniform sample of the corpus.
    """

    needs_positives: bool = True
    samples_corpus: bool = False

    @classmethod
    def require_possible(cls, settings: FeedSettings) -> None:
        """Refuse settings of a run file that do not suit this feed; by default none."""
        return

    @classmethod
    def from_settings(cls, settings: FeedSettings, source: ItemSource, seed: int) -> Feed:
        """Build the feed of a run file; a feed in `FEEDS` implements it."""
        raise NotImplementedError

    def require_room(self, cache: ItemCache) -> None:
        """Raise if the cache is too small for this feed. Does nothing by default."""
        return

    def begin(self, cache: ItemCache) -> None:
        """Fill the cache before the first step that draws from it. Does nothing by default."""
        return

    @abstractmethod
    def feed(self, cache: ItemCache, positives: HeldItems, embeddings: Tensor) -> PushReport:
        """Push items after each step.

        Args:
            cache: The cache to push into.
            positives: The positives of the step; their `rows` are unused.
            embeddings: Their fresh embeddings.
        """


class CorpusFeed(Feed):
    """Fills the cache with the whole corpus at the start (α = 1).

    Args:
        source: The corpus; the cache must have room for all of it.
    """

    needs_positives = False

    def __init__(self, source: ItemSource) -> None:
        self._source = source

    @classmethod
    def require_possible(cls, settings: FeedSettings) -> None:  # noqa: D102
        if settings.num_items is not None:
            raise ConfigError(
                "feed = 'corpus' holds all items: remove num_items, or set feed = 'stream'"
            )

    @classmethod
    def from_settings(  # noqa: D102
        cls, settings: FeedSettings, source: ItemSource, seed: int
    ) -> CorpusFeed:
        return cls(source)

    def require_room(self, cache: ItemCache) -> None:
        """Raise if the cache has fewer rows than the corpus has items."""
        if cache.num_items < self._source.num_items:
            raise ConfigError(
                f"the cache holds {cache.num_items:,} items, but the corpus has "
                f"{self._source.num_items:,}: make it larger, or feed it a stream"
            )

    def begin(self, cache: ItemCache) -> None:
        """Encode and push all items, each rank those it owns."""
        self.require_room(cache)
        own = cache.own_keys(self._source.num_items)
        _fill(cache, self._source, own, torch.arange(len(own)))

    def feed(  # noqa: D102
        self, cache: ItemCache, positives: HeldItems, embeddings: Tensor
    ) -> PushReport:
        return _NOTHING


class StreamFeed(Feed):
    """Pushes a few random items per step: the cache is a moving uniform sample of the corpus.

    Build the cache with `corpus_size` and "fifo" eviction. Under "lru" eviction, items that are
    drawn often would stay, and the sample would not be uniform. In a shared cache, each rank draws
    from the keys it owns, so that no item is pushed twice and no embedding is sent.

    Args:
        source: The corpus; it may be larger than memory.
        num_new: Items per step and rank.
        seed: Seed of the random items.
    """

    needs_positives = False
    samples_corpus = True

    def __init__(self, source: ItemSource, num_new: int, seed: int = 0) -> None:
        if num_new < 1:
            raise ConfigError(f"a stream needs num_new >= 1, but got {num_new}")
        self._source = source
        self._num_new = num_new
        self._seed = seed

    @classmethod
    def require_possible(cls, settings: FeedSettings) -> None:  # noqa: D102
        if ITEM_EVICTION[settings.eviction].renews:
            raise ConfigError(
                "feed = 'stream' is a uniform sample only with eviction = 'fifo': with "
                f"{settings.eviction!r}, items that are drawn often would stay"
            )

    @classmethod
    def from_settings(  # noqa: D102
        cls, settings: FeedSettings, source: ItemSource, seed: int
    ) -> StreamFeed:
        return cls(source, settings.num_new, seed)

    def begin(self, cache: ItemCache) -> None:
        """Fill the cache with distinct random items."""
        own = cache.own_keys(self._source.num_items)
        num = min(cache.num_items_here, len(own))
        picked = _distinct(num, len(own), self._generator(cache, "fill"))
        _fill(cache, self._source, own, picked)

    def feed(  # noqa: D102
        self, cache: ItemCache, positives: HeldItems, embeddings: Tensor
    ) -> PushReport:
        own = cache.own_keys(self._source.num_items)
        num = self._num_new if len(own) else 0
        picked = torch.randint(max(1, len(own)), (num,), generator=self._generator(cache, "stream"))
        return _push(cache, self._source, _keys_of(own, picked, cache), self._num_new)

    def _generator(self, cache: ItemCache, use: str) -> torch.Generator:
        seed = derive_seed(self._seed, use, cache.clock, cache.shard.index)
        return torch.Generator().manual_seed(seed)


class PositivesFeed(Feed):
    """Pushes the positives of each step, as the paper's public code does.

    Popular items are then held more often than others. With `counts`, each item is weighted by
    1/πⱼ, πⱼ its probability of being held (logQ correction); without, the softmax is over popular
    items. The probabilities grow while the cache fills, and all weights are updated with them (see
    `inclusion`).

    Args:
        counts: How often each item is a positive, by key.
        num_held: Capacity of the cache; needed with `counts`.
        eviction: Eviction of the cache; needed with `counts`.
    """

    def __init__(
        self,
        counts: Int64[Tensor, " items"] | None = None,
        num_held: int = 0,
        eviction: str = "fifo",
    ) -> None:
        self._inclusion: InclusionProbabilities | None = None
        if counts is not None:
            self._inclusion = InclusionProbabilities(counts, num_held, eviction)

    @classmethod
    def from_settings(  # noqa: D102
        cls, settings: FeedSettings, source: ItemSource, seed: int
    ) -> PositivesFeed:
        if not settings.log_q:
            return cls()
        num_held = min(settings.num_items or source.num_items, source.num_items)
        return cls(source.require_counts(), num_held, settings.eviction)

    def feed(  # noqa: D102
        self, cache: ItemCache, positives: HeldItems, embeddings: Tensor
    ) -> PushReport:
        if self._inclusion is None:
            return cache.push(positives.features, embeddings, positives.keys)
        inclusion = self._inclusion.to(positives.keys.device)
        was_steady = cache.num_pushed >= inclusion.steady_at
        weights = -inclusion.log_probabilities(positives.keys, math.inf)
        report = cache.push(positives.features, embeddings, positives.keys, weights)
        if not was_steady:
            num_pushed = cache.num_pushed
            cache.reweigh(lambda keys: -inclusion.log_probabilities(keys, num_pushed))
        return report


FEEDS: dict[str, type[Feed]] = {
    "corpus": CorpusFeed,
    "stream": StreamFeed,
    "positives": PositivesFeed,
}


def _push(cache: ItemCache, source: ItemSource, keys: Int64[Tensor, " n"], most: int) -> PushReport:
    """Encode and push items; `most` is the largest number on any rank."""
    with failing_in_group(cache.ranks, cache.device):
        embeddings = source.encode_keys(keys, most=most)
    return cache.push(source.features_of(keys), embeddings, keys)


def _fill(cache: ItemCache, source: ItemSource, own: range, positions: Int64[Tensor, " n"]) -> None:
    """Push the keys at given positions of a range, in chunks; the same number on all ranks.

    If it is stopped, the cache keeps what was pushed so far, and is filled again later.
    """
    most = min(cache.num_items_here, -(-source.num_items // cache.shard.count))
    for start in range(0, most, _FILL_SIZE):
        if start:
            check_stop_together(cache.device)
        keys = _keys_of(own, positions[start : start + _FILL_SIZE], cache)
        _push(cache, source, keys, min(_FILL_SIZE, most - start))


def _keys_of(own: range, positions: Int64[Tensor, " n"], cache: ItemCache) -> Int64[Tensor, " n"]:
    """The keys at given positions of a range, on the cache's device."""
    return (own.start + own.step * positions).to(cache.device)


def _distinct(num: int, total: int, generator: torch.Generator) -> Int64[Tensor, " num"]:
    """`num` distinct numbers from 0 … total − 1, in random order."""
    if 8 * num > total:
        return torch.randperm(total, generator=generator)[:num]
    found = torch.empty(
        0, dtype=torch.int64
    )  # few of many: draw with replacement until enough are distinct
    while len(found) < num:
        more = torch.randint(total, (num + 64,), generator=generator)
        found = torch.unique(torch.cat((found, more)))
    return found[torch.randperm(len(found), generator=generator)[:num]]
