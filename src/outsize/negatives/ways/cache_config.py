"""Configuration of the negative cache in a run file."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outsize.bounds import require_at_least
from outsize.errors import ConfigError
from outsize.negatives.cache.contract import ItemCache
from outsize.negatives.cache.feeds import FEEDS, FeedSettings
from outsize.negatives.cache.item_eviction import ITEM_EVICTION
from outsize.negatives.cache.negative_cache import NegativeCache
from outsize.negatives.cache.precision import PRECISIONS
from outsize.negatives.cache.sharded_cache import ShardedNegativeCache
from outsize.negatives.cache.upkeep import Upkeep
from outsize.negatives.contract import ItemSource, NegativesConfig
from outsize.negatives.estimators import ESTIMATORS
from outsize.negatives.temperature import Temperature
from outsize.negatives.ways.cache import Comparison, NegativeCacheLoss
from outsize.ranks.collectives import world_size
from outsize.registries import require_known


@dataclass(frozen=True)
class NegativeCacheConfig(NegativesConfig):
    """Negatives drawn from a cache by softmax over their scores; ranks share one cache.

    Attributes:
        num_negatives: Draws per query.
        num_items: Capacity of the cache in items, over all ranks; `None` for the whole corpus.
        feed: "corpus" (all items from the start), "stream" (a moving uniform sample) or
            "positives" (the positives of each step).
        num_new: Random items per step and rank, for a stream.
        refresh: ρ, the share of the held items that is re-encoded per step, the oldest first.
        precision: How embeddings are stored: "float32", "bfloat16" or "int8".
        eviction: "fifo" or "lru".
        estimator: "weighted", "sampled", "control-variate", "shared", "systematic" or
            "shared-systematic".
        in_batch: Add in-batch negatives.
        symmetric: Average with the loss of each positive against the queries of the batch.
        log_q: Apply the logQ correction to a cache of positives.
        warmup_steps: Steps with in-batch negatives only.
    """

    num_negatives: int = 16
    num_items: int | None = None
    feed: str = "corpus"
    num_new: int = 64
    refresh: float = 0.0
    precision: str = "bfloat16"
    eviction: str = "fifo"
    estimator: str = "weighted"
    in_batch: bool = False
    symmetric: bool = False
    log_q: bool = True
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "num_negatives", "num_items", "num_new")
        require_at_least(self, 0, "warmup_steps", "refresh")
        if self.refresh > 1:
            raise ConfigError(f"refresh must be from 0 to 1, but got {self.refresh}")
        require_known("feed", self.feed, FEEDS)
        require_known("precision", self.precision, PRECISIONS)
        require_known("eviction", self.eviction, ITEM_EVICTION)
        require_known("estimator", self.estimator, ESTIMATORS)
        FEEDS[self.feed].require_possible(self._feed_settings)

    def build(self, source: ItemSource, seed: int) -> NegativeCacheLoss:  # noqa: D102
        size = min(self.num_items or source.num_items, source.num_items)
        example = source.features_of(torch.zeros(1, dtype=torch.int64))
        shapes = {name: (values.shape[1:], values.dtype) for name, values in example.items()}
        corpus_size = source.num_items if FEEDS[self.feed].samples_corpus else None
        feed = FEEDS[self.feed].from_settings(self._feed_settings, source, seed)
        kind = NegativeCache if world_size() == 1 else ShardedNegativeCache
        cache: ItemCache = kind(
            size, source.dim, shapes, self.precision, self.eviction, corpus_size, seed
        )
        return NegativeCacheLoss(
            cache,
            source.encode,
            Temperature(self.beta, self.learn_beta),
            self.num_negatives,
            Comparison(self.estimator, self.in_batch, self.symmetric),
            Upkeep(feed, self.refresh, self.warmup_steps, source.num_at_once),
        )

    def items_per_step(self, batch_size: int, num_items: int) -> int:  # noqa: D102
        num_new = self.num_new if FEEDS[self.feed].samples_corpus else 0
        return batch_size * self.num_negatives + num_new

    @property
    def _feed_settings(self) -> FeedSettings:
        return FeedSettings(self.num_items, self.eviction, self.num_new, self.log_q)
