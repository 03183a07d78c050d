"""Negatives: which items a query is trained against, a cache of stale ones or one of its baselines.

`NEGATIVES` maps the name in a run file to its configuration. Each builds a `NegativesLoss`.
"""

from outsize.negatives.cache.cache_files import load_cache, save_cache, write_cache
from outsize.negatives.cache.contract import ItemCache, PushReport
from outsize.negatives.cache.draw import Draw, HeldItems
from outsize.negatives.cache.feeds import (
    FEEDS,
    CorpusFeed,
    Feed,
    FeedSettings,
    PositivesFeed,
    StreamFeed,
)
from outsize.negatives.cache.item_eviction import ITEM_EVICTION, ItemEviction
from outsize.negatives.cache.negative_cache import NegativeCache
from outsize.negatives.cache.precision import PRECISIONS
from outsize.negatives.cache.sharded_cache import ShardedNegativeCache
from outsize.negatives.cache.upkeep import Upkeep
from outsize.negatives.chunked import in_chunks
from outsize.negatives.contract import ItemSource, LossReport, NegativesConfig, NegativesLoss
from outsize.negatives.estimators import ESTIMATORS, CachedSoftmax, Estimator, cached_softmax
from outsize.negatives.inclusion import log_inclusion
from outsize.negatives.temperature import Temperature
from outsize.negatives.ways.cache import CacheLossReport, Comparison, NegativeCacheLoss
from outsize.negatives.ways.cache_config import NegativeCacheConfig
from outsize.negatives.ways.exact import ExactConfig, ExactLoss
from outsize.negatives.ways.in_batch import InBatchConfig, InBatchLoss, in_batch_logits
from outsize.negatives.ways.queue import QueueConfig, QueueLoss
from outsize.negatives.ways.top_items import TopItemsConfig, TopItemsLoss
from outsize.negatives.ways.uniform import UniformConfig, UniformLoss

NEGATIVES: dict[str, type[NegativesConfig]] = {
    "cache": NegativeCacheConfig,
    "in-batch": InBatchConfig,
    "queue": QueueConfig,
    "uniform": UniformConfig,
    "top-items": TopItemsConfig,
    "exact": ExactConfig,
}

__all__ = [
    "ESTIMATORS",
    "FEEDS",
    "ITEM_EVICTION",
    "NEGATIVES",
    "PRECISIONS",
    "CacheLossReport",
    "CachedSoftmax",
    "Comparison",
    "CorpusFeed",
    "Draw",
    "Estimator",
    "ExactConfig",
    "ExactLoss",
    "Feed",
    "FeedSettings",
    "HeldItems",
    "InBatchConfig",
    "InBatchLoss",
    "ItemCache",
    "ItemEviction",
    "ItemSource",
    "LossReport",
    "NegativeCache",
    "NegativeCacheConfig",
    "NegativeCacheLoss",
    "NegativesConfig",
    "NegativesLoss",
    "PositivesFeed",
    "PushReport",
    "QueueConfig",
    "QueueLoss",
    "ShardedNegativeCache",
    "StreamFeed",
    "Temperature",
    "TopItemsConfig",
    "TopItemsLoss",
    "UniformConfig",
    "UniformLoss",
    "Upkeep",
    "cached_softmax",
    "in_batch_logits",
    "in_chunks",
    "load_cache",
    "log_inclusion",
    "save_cache",
    "write_cache",
]
