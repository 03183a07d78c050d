"""Pillar 2, where rows live: one file per store."""

from collections.abc import Callable
from typing import Any

from outsize.contracts import RowStore
from outsize.stores.local import LocalStore
from outsize.stores.replicated import ReplicatedStore


def replicated_local_store(*args: Any, **kwargs: Any) -> ReplicatedStore:
    """A local store on every rank, kept equal; with one rank, a local store."""
    return ReplicatedStore(LocalStore(*args, **kwargs))


STORES: dict[str, Callable[..., RowStore]] = {
    "local": LocalStore,
    "replicated": replicated_local_store,
}

__all__ = ["STORES", "LocalStore", "ReplicatedStore", "replicated_local_store"]
