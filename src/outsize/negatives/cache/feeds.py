"""How items come into a cache: all at the start, a stream of random ones, or the positives."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.errors import ConfigError
from outsize.hashing import derive_seed
from outsize.negatives.cache.contract import ItemCache, PushReport
from outsize.negatives.cache.draw import HeldItems
from outsize.negatives.contract import ItemSource
from outsize.negatives.inclusion import InclusionChances
from outsize.ranks.collectives import check_stop_together
from outsize.ranks.gathering import raising_together

_NOTHING = PushReport(0, 0, 0)
_FILL_SIZE = 1 << 17  # so that no second copy of a corpus is made in float32


class Feed(ABC):
    """Brings items into a cache.

    Attributes:
        needs_positives: Whether items come in with the positives of each step. A feed that has
            items of its own waits until the cache counts, and fills it then.
    """

    needs_positives: bool = True

    def require_room(self, cache: ItemCache) -> None:
        """Refuse a cache that cannot be fed; by default none."""
        return

    def begin(self, cache: ItemCache) -> None:
        """Before the first step that draws from the cache; by default nothing."""
        return

    @abstractmethod
    def feed(self, cache: ItemCache, positives: HeldItems, embeddings: Tensor) -> PushReport:
        """After each step.

        Args:
            cache: What to push into.
            positives: The step's positives; their rows mean nothing.
            embeddings: What those were encoded to.
        """


class CorpusFeed(Feed):
    """Every item from the start: the cache is the corpus (α = 1), and only has to be kept fresh.

    Args:
        source: All items; the cache must have room for them.
    """

    needs_positives = False

    def __init__(self, source: ItemSource) -> None:
        self._source = source

    def require_room(self, cache: ItemCache) -> None:
        """Refuse a cache with fewer rows than there are items."""
        if cache.num_items < self._source.num_items:
            raise ConfigError(
                f"the cache holds {cache.num_items:,} items, but the corpus has "
                f"{self._source.num_items:,}: make it larger, or feed it a stream"
            )

    def begin(self, cache: ItemCache) -> None:
        """Encode and push all items, each rank those it keeps."""
        self.require_room(cache)
        own = cache.own_keys(self._source.num_items)
        _fill(cache, self._source, own, torch.arange(len(own)))

    def feed(  # noqa: D102
        self, cache: ItemCache, positives: HeldItems, embeddings: Tensor
    ) -> PushReport:
        return _NOTHING


class StreamFeed(Feed):
    """A few random items a step: the cache is a moving uniform sample of the corpus.

    Give the cache the `corpus_size`, and let it evict by "fifo": under "lru" items that are drawn
    often would stay, and the sample would not be uniform. Where ranks share the cache, each draws
    from the keys it keeps, so that no two bring the same item and no embedding is sent.

    Args:
        source: What to draw from; it may be larger than any memory.
        num_new: Items a step, of each rank.
        seed: Seed of the random items.
    """

    needs_positives = False

    def __init__(self, source: ItemSource, num_new: int, seed: int = 0) -> None:
        if num_new < 1:
            raise ConfigError(f"a stream needs num_new >= 1, but got {num_new}")
        self._source = source
        self._num_new = num_new
        self._seed = seed

    def begin(self, cache: ItemCache) -> None:
        """Fill the cache with random items, each once."""
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
    """What the queries of each step are right for, as the public code of the paper does it.

    Popular items are then held more often than others. With their counts they weigh less, each
    1/chance to be held; without, the softmax is over what is popular. Chances grow while the cache
    fills, and with them all weights change (see `inclusion`).

    Args:
        counts: How often each item, by key, is a positive.
        num_held: The cache's size, where counts are given.
        eviction: The cache's eviction, likewise.
    """

    def __init__(
        self,
        counts: Int64[Tensor, " items"] | None = None,
        num_held: int = 0,
        eviction: str = "fifo",
    ) -> None:
        self._chances: InclusionChances | None = None
        if counts is not None:
            self._chances = InclusionChances(counts, num_held, eviction)

    def feed(  # noqa: D102
        self, cache: ItemCache, positives: HeldItems, embeddings: Tensor
    ) -> PushReport:
        if self._chances is None:
            return cache.push(positives.features, embeddings, positives.keys)
        chances = self._chances.to(positives.keys.device)
        was_steady = cache.num_pushed >= chances.steady_at
        weights = -chances.log_chances(positives.keys, math.inf)
        report = cache.push(positives.features, embeddings, positives.keys, weights)
        if not was_steady:
            num_pushed = cache.num_pushed
            cache.reweigh(lambda keys: -chances.log_chances(keys, num_pushed))
        return report


def _push(cache: ItemCache, source: ItemSource, keys: Int64[Tensor, " n"], most: int) -> PushReport:
    """Encode and push items; `most` is how many any rank has."""
    with raising_together(cache.ranks, cache.device):
        embeddings = source.encode_keys(keys, most=most)
    return cache.push(source.features_of(keys), embeddings, keys)


def _fill(cache: ItemCache, source: ItemSource, own: range, places: Int64[Tensor, " n"]) -> None:
    """Push the keys at given places of a range, some at a time; all ranks as many times.

    Where it is stopped on the way, the cache has what was pushed, and is filled again later.
    """
    most = min(cache.num_items_here, -(-source.num_items // cache.shard.count))
    for start in range(0, most, _FILL_SIZE):
        if start:
            check_stop_together(cache.device)
        keys = _keys_of(own, places[start : start + _FILL_SIZE], cache)
        _push(cache, source, keys, min(_FILL_SIZE, most - start))


def _keys_of(own: range, places: Int64[Tensor, " n"], cache: ItemCache) -> Int64[Tensor, " n"]:
    """The keys at given places of a range, on the cache's device."""
    return (own.start + own.step * places).to(cache.device)


def _distinct(num: int, total: int, generator: torch.Generator) -> Int64[Tensor, " num"]:
    """Some of 0 … total − 1, each at most once, in random order."""
    if 8 * num > total:
        return torch.randperm(total, generator=generator)[:num]
    found = torch.empty(0, dtype=torch.int64)  # few of many: draw until there are enough
    while len(found) < num:
        more = torch.randint(total, (num + 64,), generator=generator)
        found = torch.unique(torch.cat((found, more)))
    return found[torch.randperm(len(found), generator=generator)[:num]]
