"""Which rows a bounded cache keeps: one file per policy, by name in `EVICTION`.

LRU, LFU and light LFU are those of HET (Miao et al., "HET: Scaling out Huge Embedding Model
Training via Cache-enabled Distributed Framework", VLDB 2022). They admit every row there is room
for. Fading LFU admits a row only if it is used more than its victim, and follows drift.
"""

from __future__ import annotations

from collections.abc import Callable

from outsize.stores.eviction.fading_lfu import FadingLFU
from outsize.stores.eviction.lfu import LFU
from outsize.stores.eviction.light_lfu import LightLFU
from outsize.stores.eviction.lru import LRU
from outsize.stores.eviction.policy import EvictionPolicy

EVICTION: dict[str, Callable[[int], EvictionPolicy]] = {
    "lru": LRU,
    "lfu": LFU,
    "light-lfu": LightLFU,
    "fading-lfu": FadingLFU,
}

__all__ = ["EVICTION", "LFU", "LRU", "EvictionPolicy", "FadingLFU", "LightLFU"]
