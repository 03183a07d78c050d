"""Pillar 2, where rows live: one file per store."""

from collections.abc import Callable
from typing import Any

from outsize.contracts import RowStore
from outsize.stores.cached import CachedStore
from outsize.stores.eviction import EVICTION
from outsize.stores.local import LocalStore
from outsize.stores.overlapped import OverlappedStore
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


def overlapped_sharded_store(*args: Any, **kwargs: Any) -> OverlappedStore:
    """Rows that ranks share, read one batch ahead."""
    return OverlappedStore(ShardedStore(*args, **kwargs))


STORES: dict[str, Callable[..., RowStore]] = {
    "local": LocalStore,
    "replicated": replicated_local_store,
    "sharded": ShardedStore,
    "cached": cached_sharded_store,
    "overlapped": overlapped_sharded_store,
    "served": ServedStore,
}
"""Name → what makes a store of `(specs, seed=…)`; one that is shared also takes `wire=`.

Run files name the classes. The others are compositions, which a run makes itself: a store that is
not shared is replicated over the ranks, `[embeddings.cache]` puts a cache before one that is, and
`embeddings.overlap` reads its rows one batch ahead.
"""


def store_classes() -> dict[str, type[RowStore]]:
    """The stores that a run file may name: the classes in `STORES`."""
    return {name: kind for name, kind in STORES.items() if isinstance(kind, type)}


__all__ = [
    "EVICTION",
    "STORES",
    "WIRES",
    "CachedStore",
    "LocalStore",
    "OverlappedStore",
    "ReplicatedStore",
    "ServedStore",
    "ShardedStore",
    "cached_sharded_store",
    "overlapped_sharded_store",
    "replicated_local_store",
    "store_classes",
]
