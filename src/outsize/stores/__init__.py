"""Pillar 2, where rows live: one file per store."""

from collections.abc import Callable
from typing import Any

from outsize.contracts import RowStore
from outsize.stores.cached import CachedStore
from outsize.stores.eviction import EVICTION
from outsize.stores.local import LocalStore
from outsize.stores.replicated import ReplicatedStore
from outsize.stores.served.served_store import ServedStore
from outsize.stores.sharded import ShardedStore
from outsize.stores.wire import WIRES


def replicated_local_store(*args: Any, **kwargs: Any) -> ReplicatedStore:
    """A local store on every rank, kept equal; with one rank, a local store."""
    return ReplicatedStore(LocalStore(*args, **kwargs))


def cached_sharded_store(*args: Any, num_rows: int = 1000, **kwargs: Any) -> CachedStore:
    """A cache on every rank in front of rows that ranks share."""
    return CachedStore(ShardedStore(*args, **kwargs), num_rows)


STORES: dict[str, Callable[..., RowStore]] = {
    "local": LocalStore,
    "replicated": replicated_local_store,
    "sharded": ShardedStore,
    "cached": cached_sharded_store,
    "served": ServedStore,
}

__all__ = [
    "EVICTION",
    "STORES",
    "WIRES",
    "CachedStore",
    "LocalStore",
    "ReplicatedStore",
    "ServedStore",
    "ShardedStore",
    "cached_sharded_store",
    "replicated_local_store",
]
