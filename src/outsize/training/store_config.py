"""Embeddings as rows of a store: the configuration of store, cache and row optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from outsize.bounds import MAX_RATE, require_at_least, require_between, require_staleness
from outsize.collection import EmbeddingCollection
from outsize.contracts import RowStore
from outsize.errors import ConfigError
from outsize.optimizers import ROW_OPTIMIZERS, RowOptimizer
from outsize.ranks.collectives import RankGroup, world_size
from outsize.registries import require_known
from outsize.spec import FeatureSpec, TableSpec
from outsize.stores import (
    EVICTION,
    STORES,
    WIRES,
    CachedStore,
    LocalStore,
    OverlappedStore,
    ReplicatedStore,
    store_classes,
)
from outsize.training.embeddings_config import BYTES_PER_FLOAT, EmbeddingsConfig

_MAX_STALENESS = (1 << 31) - 1  # as clocks count


@dataclass(frozen=True)
class RowOptimizerConfig:
    """The optimizer of rows in a store.

    Attributes:
        kind: A key of `outsize.ROW_OPTIMIZERS`: "sgd", "adagrad" (row-wise), "full-adagrad",
            "adam".
        learning_rate: Step size.
        fused: Whether rows are updated in the backward pass, which is faster; their gradients are
            then not kept, so that nothing can clip them. By default on CUDA, for click models on
            one rank without `train.clip_norm`.
    """

    kind: str = "adagrad"
    learning_rate: float = 0.05
    fused: bool | None = None

    def __post_init__(self) -> None:
        require_known("kind", self.kind, ROW_OPTIMIZERS)
        require_between(self, 0, MAX_RATE, "learning_rate")


@dataclass(frozen=True)
class CacheConfig:
    """A cache on each rank, with copies of rows that other ranks own.

    Attributes:
        share: Capacity as a share of all rows, 0 to 1; 0 for no cache.
        read_staleness: How many updates of others a copy may miss; `inf` never asks.
        write_staleness: How many batches of own updates may wait; `inf` waits for a flush.
        eviction: A key of `outsize.EVICTION`: "lru", "lfu", "light-lfu", "fading-lfu".
    """

    share: float = 0.0
    read_staleness: float = 10.0
    write_staleness: float = 10.0
    eviction: str = "fading-lfu"

    def __post_init__(self) -> None:
        require_between(self, 0, 1, "share")
        for name in ("read_staleness", "write_staleness"):
            require_staleness(self, name)
            if _MAX_STALENESS < getattr(self, name) < math.inf:
                raise ConfigError(
                    f"{name} must be at most {_MAX_STALENESS:,}, or inf for no bound, but got "
                    f"{getattr(self, name):g}"
                )
        require_known("eviction", self.eviction, EVICTION)


@dataclass(frozen=True)
class StoreConfig(EmbeddingsConfig):
    """Embeddings as rows of a store, trained by a row optimizer.

    Attributes:
        dim: Width of a row.
        store: Where rows live, a class of `outsize.STORES`: "local", on every rank; "sharded", each
            with one rank; or "served", each by the rank that owns it, in asynchronous training.
        wire: How rows and gradients travel between ranks, a key of `outsize.WIRES`: "float32",
            "bfloat16" or "int8".
        cache: Copies of rows of other ranks, for `store = "sharded"` or "served".
        overlap: Whether the rows of the next batch are exchanged while this one computes, for click
            models with `store = "sharded"` on the CPU. A read then also misses the updates of the
            step before it.
        init_std: Standard deviation of fresh values; by default 1 / sqrt(3 · dim).
        optimizer: How rows are trained.
    """

    dim: int = 16
    store: str = "local"
    wire: str = "float32"
    cache: CacheConfig = field(default_factory=CacheConfig)
    overlap: bool = False
    init_std: float | None = None
    optimizer: RowOptimizerConfig = field(default_factory=RowOptimizerConfig)

    def __post_init__(self) -> None:
        require_at_least(self, 1, "dim")
        require_between(self, 0, MAX_RATE, "init_std")
        require_known("store", self.store, store_classes())
        require_known("wire", self.wire, WIRES)
        if not self.is_shared and (self.cache.share or self.wire != "float32"):
            raise ConfigError(
                "a cache and a wire format are for rows of other ranks, but store = "
                f"{self.store!r} keeps all rows on every rank: set store = 'sharded'"
            )

        if self.overlap and (self.is_asynchronous or not self.is_shared):
            why = (
                "lets ranks wait for no exchange"
                if self.is_asynchronous
                else "keeps all rows on every rank, and exchanges none"
            )
            raise ConfigError(
                f"overlap is for exchanges between ranks, but store = {self.store!r} {why}: set "
                "store = 'sharded', or leave overlap out"
            )

    @property
    def fused(self) -> bool | None:  # noqa: D102
        return self.optimizer.fused

    @property
    def is_shared(self) -> bool:  # noqa: D102
        return store_classes()[self.store].is_shared

    @property
    def is_asynchronous(self) -> bool:  # noqa: D102
        return store_classes()[self.store].is_asynchronous

    def build(  # noqa: D102
        self, features: Sequence[FeatureSpec], specs: Sequence[TableSpec], seed: int
    ) -> EmbeddingCollection:
        return EmbeddingCollection(features, self.build_store(specs, seed))

    def build_store(
        self, specs: Sequence[TableSpec], seed: int, ranks: RankGroup | None = None
    ) -> RowStore:
        """The store, with the cache in front of it; exchanges overlap if asked to.

        Args:
            specs: The tables.
            seed: Seed of their initial rows.
            ranks: The ranks that share the rows; by default those of the process group.
        """
        if not self.is_shared:
            store = STORES[self.store](specs, seed=seed)
            return ReplicatedStore(store) if world_size() > 1 else store
        group = {} if ranks is None else {"group": ranks}
        store = STORES[self.store](specs, seed=seed, wire=self.wire, **group)
        cache = self.cache
        if cache.share:
            num_rows = max(len(store.layout.groups), round(cache.share * store.layout.num_rows))
            bounds = (cache.read_staleness, cache.write_staleness)
            store = CachedStore(store, num_rows, *bounds, cache.eviction)
        return OverlappedStore(store) if self.overlap else store

    def build_row_optimizer(  # noqa: D102
        self, store: RowStore | None, **options: bool
    ) -> RowOptimizer | None:
        if store is None:  # a model with embeddings of its own
            return None
        wanted = self.optimizer
        return ROW_OPTIMIZERS[wanted.kind](store, learning_rate=wanted.learning_rate, **options)

    def num_bytes(self, specs: Sequence[TableSpec], dense_state: int) -> int:  # noqa: D102
        num_rows = sum(spec.num_rows for spec in specs)
        optimizer = ROW_OPTIMIZERS[self.optimizer.kind](LocalStore([TableSpec("rows", 1, 1)]))
        widths = optimizer.rule().state_widths(self.dim)
        per_row = (self.dim + sum(widths.values()) + 1) * BYTES_PER_FLOAT
        num_parts = world_size() if self.is_shared else 1
        return num_rows * per_row // num_parts + int(self.cache.share * num_rows * per_row)
