"""Pillar 2, where rows live: one file per store."""

from collections.abc import Callable

from outsize.contracts import RowStore
from outsize.stores.local import LocalStore

STORES: dict[str, Callable[..., RowStore]] = {"local": LocalStore}

__all__ = ["STORES", "LocalStore"]
