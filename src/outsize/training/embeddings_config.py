"""How the embeddings of a run are kept: rows in a store, or tables within a budget."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from outsize.bounds import MAX_RATE, require_at_least, require_between
from outsize.collection import EmbeddingCollection
from outsize.contracts import RowStore
from outsize.errors import ConfigError
from outsize.optimizers import ROW_OPTIMIZERS, RowOptimizer
from outsize.ranks.collectives import world_size
from outsize.registries import require_known
from outsize.spec import Budget, FeatureSpec, TableSpec
from outsize.stores import (
    EVICTION,
    STORES,
    WIRES,
    CachedStore,
    LocalStore,
    ReplicatedStore,
    store_classes,
)
from outsize.stores.cached import require_staleness
from outsize.tables import TABLES, build_tables
from outsize.tables.build import options_of

_MAX_CLUSTERINGS = 1_000_000
_MAX_STALENESS = (1 << 31) - 1  # as clocks count
_FLOAT = 4  # bytes


class EmbeddingsConfig(ABC):
    """How the embeddings of a run are kept; it makes them.

    Attributes:
        dim: Width of a vector.
        init_std: Standard deviation of fresh values; `None` for the default.
    """

    dim: int
    init_std: float | None

    @property
    def is_shared(self) -> bool:
        """Whether each rank keeps a part of the rows, instead of all of them."""
        return False

    @property
    def is_asynchronous(self) -> bool:
        """Whether each rank trains at its own pace, all parameters being served."""
        return False

    @property
    def weighs_ids(self) -> bool:
        """Whether clustering needs to know how often ids have occurred."""
        return False

    @property
    def table_rate(self) -> float | None:
        """The learning rate of tables, where it differs from that of the dense weights."""
        return None

    @abstractmethod
    def build(
        self, features: Sequence[FeatureSpec], specs: Sequence[TableSpec], seed: int
    ) -> EmbeddingCollection:
        """Make the embeddings of features over these tables."""

    def build_row_optimizer(self, store: RowStore | None) -> RowOptimizer | None:
        """The optimizer of the rows, where they live in a store."""
        return None

    @abstractmethod
    def num_bytes(self, specs: Sequence[TableSpec], dense_state: int) -> int:
        """What embeddings take on a rank, with what their optimizer keeps.

        Args:
            specs: The tables.
            dense_state: Numbers that the optimizer of the dense weights keeps with each of them.
        """

    def recluster_steps(self, total_steps: int, steps_per_epoch: int) -> frozenset[int]:
        """The steps after which a run reclusters; none where its tables cannot be."""
        return frozenset()


@dataclass(frozen=True)
class RowOptimizerConfig:
    """The optimizer of rows in a store.

    Attributes:
        kind: A key of `outsize.ROW_OPTIMIZERS`: "sgd", "adagrad" (row-wise), "full-adagrad",
            "adam".
        learning_rate: Step size.
    """

    kind: str = "adagrad"
    learning_rate: float = 0.05

    def __post_init__(self) -> None:
        require_known("kind", self.kind, ROW_OPTIMIZERS)
        require_between(self, 0, MAX_RATE, "learning_rate")


@dataclass(frozen=True)
class CacheConfig:
    """Copies of rows that other ranks own, kept by each rank.

    Attributes:
        share: Room for this share, 0 to 1, of all rows; 0 for no cache.
        read_staleness: How many updates of others a copy may miss; `inf` never asks.
        write_staleness: How many batches of own updates may wait; `inf` waits for a flush.
        eviction: A key of `outsize.EVICTION`: "lru", "lfu", "light-lfu", "fading-lfu".
    """

    share: float = 0.0
    read_staleness: float = 100.0
    write_staleness: float = 10.0
    eviction: str = "fading-lfu"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"share must be between 0 and 1, but got {self.share}")
        for name in ("read_staleness", "write_staleness"):
            require_staleness(name, getattr(self, name))
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
        init_std: Standard deviation of fresh values; by default 1 / sqrt(3 · dim).
        optimizer: How rows are trained.
    """

    dim: int = 16
    store: str = "local"
    wire: str = "float32"
    cache: CacheConfig = field(default_factory=CacheConfig)
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

    def build_store(self, specs: Sequence[TableSpec], seed: int) -> RowStore:
        """Where the rows live, with the cache in front of them."""
        if not self.is_shared:
            store = STORES[self.store](specs, seed=seed)
            return ReplicatedStore(store) if world_size() > 1 else store
        store = STORES[self.store](specs, seed=seed, wire=self.wire)
        cache = self.cache
        if cache.share:
            num_rows = max(len(store.layout.groups), round(cache.share * store.layout.num_rows))
            bounds = (cache.read_staleness, cache.write_staleness)
            store = CachedStore(store, num_rows, *bounds, cache.eviction)
        return store

    def build_row_optimizer(self, store: RowStore | None) -> RowOptimizer | None:  # noqa: D102
        assert store is not None, "`build` has made one"
        wanted = self.optimizer
        return ROW_OPTIMIZERS[wanted.kind](store, learning_rate=wanted.learning_rate)

    def num_bytes(self, specs: Sequence[TableSpec], dense_state: int) -> int:  # noqa: D102
        num_rows = sum(spec.num_rows for spec in specs)
        optimizer = ROW_OPTIMIZERS[self.optimizer.kind](LocalStore([TableSpec("rows", 1, 1)]))
        widths = optimizer.rule().state_widths(self.dim)
        per_row = (self.dim + sum(widths.values()) + 1) * _FLOAT
        num_parts = world_size() if self.is_shared else 1
        return num_rows * per_row // num_parts + int(self.cache.share * num_rows * per_row)


@dataclass(frozen=True)
class ReclusterConfig:
    """When tables that can be reclustered are.

    Clusterings come at equal distances, and after the last one the model rests: in the experiments
    of "Clustering the Sketch" runs that clustered until late did not do well. Two did best in ours,
    in one epoch and in ten; the text has two in one epoch and six in ten.

    Attributes:
        count: How many clusterings.
        every: Steps between them; by default as many as spread them over the part of the run that
            is not rest.
        rest: Share of the run, 0 to 1, after the last clustering; by default 0.5 of a single epoch
            and 0.4 of more.
        weighted: Whether ids weigh as often as they have occurred so far.
    """

    count: int = 2
    every: int | None = None
    rest: float | None = None
    weighted: bool = True

    def __post_init__(self) -> None:
        require_between(self, 0, _MAX_CLUSTERINGS, "count")
        require_at_least(self, 1, "every")
        if self.rest is not None and not 0 <= self.rest <= 1:
            raise ConfigError(f"rest must be between 0 and 1, but got {self.rest}")

    def steps(self, total_steps: int, steps_per_epoch: int) -> list[int]:
        """The steps after which tables are reclustered.

        Args:
            total_steps: Of the run.
            steps_per_epoch: Of one pass over the data.
        """
        num_epochs = total_steps / steps_per_epoch
        rest = (0.5 if num_epochs <= 1 else 0.4) if self.rest is None else self.rest
        last = int(total_steps * (1 - rest))
        if self.every is None:
            return sorted({last * i // self.count for i in range(1, self.count + 1)} - {0})
        if self.count * self.every > last:
            raise ConfigError(
                f"{self.count} clusterings every {self.every:,} steps end at step "
                f"{self.count * self.every:,} of {total_steps:,}, but a rest of {rest:g} asks for "
                f"{last:,} at most: lower recluster.count, every or rest"
            )
        return [self.every * i for i in range(1, self.count + 1)]


@dataclass(frozen=True)
class TablesConfig(EmbeddingsConfig):
    """Embeddings as table modules, trained by the optimizer of the dense weights.

    Attributes:
        dim: Width of a vector.
        method: A key of `outsize.TABLES`, for the tables that exceed the cap; the others are full.
        max_params: The cap on each table, in trainable numbers.
        max_bytes: The cap on each table, in bytes, index maps included.
        columns: Pieces a vector is put together from, for methods that have columns.
        shared: Whether the columns of a CCE table share one pool of codes; by default they do
            where they are equally wide, and in the text they do not.
        papers_init: Fresh values as each method's paper draws them, where it has a draw of its own,
            instead of the same scale for all.
        init_std: Standard deviation of fresh values; by default 1 / sqrt(3 · dim).
        learning_rate: The learning rate of the tables, whose optimizer is that of the dense
            weights; by default `optimizer.learning_rate`.
        recluster: When tables are reclustered, for methods that can be.
    """

    dim: int = 16
    method: str = "full"
    max_params: int | None = None
    max_bytes: int | None = None
    columns: int | None = None
    shared: bool | None = None
    papers_init: bool = False
    init_std: float | None = None
    learning_rate: float | None = None
    recluster: ReclusterConfig = field(default_factory=ReclusterConfig)

    def __post_init__(self) -> None:
        require_at_least(self, 1, "dim", "max_params", "max_bytes", "columns")
        require_between(self, 0, MAX_RATE, "init_std", "learning_rate")
        require_known("method", self.method, TABLES)
        if self.method != "full" and not Budget(self.max_params, self.max_bytes).is_set:
            raise ConfigError(f"a {self.method} table needs a cap: set max_params or max_bytes")

    @property
    def weighs_ids(self) -> bool:  # noqa: D102
        return self.recluster.weighted

    @property
    def table_rate(self) -> float | None:  # noqa: D102
        return self.learning_rate

    def build(  # noqa: D102
        self, features: Sequence[FeatureSpec], specs: Sequence[TableSpec], seed: int
    ) -> EmbeddingCollection:
        asked = {
            "columns": self.columns,
            "shared": self.shared,
            "papers_init": self.papers_init or None,
        }
        known = options_of(self.method)
        tables = build_tables(
            self.method,
            specs,
            max_params=self.max_params,
            max_bytes=self.max_bytes,
            seed=seed,
            **{name: value for name, value in asked.items() if value is not None and name in known},
        )
        return EmbeddingCollection(features, tables)

    def num_bytes(self, specs: Sequence[TableSpec], dense_state: int) -> int:  # noqa: D102
        num_params = sum(self._most_params(spec) for spec in specs)
        return num_params * _FLOAT * (1 + dense_state)

    def recluster_steps(self, total_steps: int, steps_per_epoch: int) -> frozenset[int]:  # noqa: D102
        if not TABLES[self.method].can_recluster:
            return frozenset()
        return frozenset(self.recluster.steps(total_steps, steps_per_epoch))

    def _most_params(self, spec: TableSpec) -> int:
        """Trainable numbers of one table at most."""
        full = spec.num_rows * spec.dim
        if self.max_params is not None:
            return min(full, self.max_params)
        return full if self.max_bytes is None else min(full, self.max_bytes // _FLOAT)
