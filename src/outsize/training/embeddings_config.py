"""How the embeddings of a run are kept: rows in a store, or tables within a budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from outsize.bounds import MAX_RATE, require_at_least, require_between
from outsize.errors import ConfigError
from outsize.spec import Budget
from outsize.stores import EVICTION
from outsize.stores.cached import require_staleness
from outsize.suggestions import suggestion
from outsize.tables import TABLES

_MAX_CLUSTERINGS = 1_000_000
_MAX_STALENESS = (1 << 31) - 1  # as clocks count


@dataclass(frozen=True)
class RowOptimizerConfig:
    """The optimizer of rows in a store.

    Attributes:
        kind: "sgd", "adagrad" (row-wise), "full-adagrad" or "adam".
        learning_rate: Step size.
    """

    kind: Literal["sgd", "adagrad", "full-adagrad", "adam"] = "adagrad"
    learning_rate: float = 0.05

    def __post_init__(self) -> None:
        require_between(self, 0, MAX_RATE, "learning_rate")


@dataclass(frozen=True)
class CacheConfig:
    """Copies of rows that other ranks own, kept by each rank.

    Attributes:
        share: Room for this share, 0 to 1, of all rows; 0 for no cache.
        read_staleness: How many updates of others a copy may miss; `inf` never asks.
        write_staleness: How many batches of own updates may wait; `inf` waits for a flush.
        eviction: A key of `outsize.stores.EVICTION`.
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
        if self.eviction not in EVICTION:
            raise ConfigError(
                f"eviction must be one of {', '.join(EVICTION)}, but got {self.eviction!r}."
                f"{suggestion(self.eviction, EVICTION)}"
            )


@dataclass(frozen=True)
class StoreConfig:
    """Embeddings as rows of a store, trained by a row optimizer.

    Attributes:
        dim: Width of a row.
        store: Where rows live: "local", on every rank; "sharded", each with one rank; or "served",
            each by the rank that owns it, in asynchronous training.
        wire: How rows and gradients travel between ranks: "float32", "bfloat16" or "int8".
        cache: Copies of rows of other ranks, for `store = "sharded"` or "served".
        init_std: Standard deviation of fresh values; by default 1 / sqrt(3 · dim).
        optimizer: How rows are trained.
    """

    dim: int = 16
    store: Literal["local", "sharded", "served"] = "local"
    wire: Literal["float32", "bfloat16", "int8"] = "float32"
    cache: CacheConfig = field(default_factory=CacheConfig)
    init_std: float | None = None
    optimizer: RowOptimizerConfig = field(default_factory=RowOptimizerConfig)

    def __post_init__(self) -> None:
        require_at_least(self, 1, "dim")
        require_between(self, 0, MAX_RATE, "init_std")
        if self.store == "local" and (self.cache.share or self.wire != "float32"):
            raise ConfigError(
                "a cache and a wire format are for rows of other ranks, but store = 'local' keeps "
                "all rows on every rank: set store = 'sharded'"
            )


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

    def steps(self, total_steps: int, steps_an_epoch: int) -> list[int]:
        """The steps after which tables are reclustered.

        Args:
            total_steps: Of the run.
            steps_an_epoch: Of one pass over the data.
        """
        num_epochs = total_steps / steps_an_epoch
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
class TablesConfig:
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
    recluster: ReclusterConfig = field(default_factory=ReclusterConfig)

    def __post_init__(self) -> None:
        require_at_least(self, 1, "dim", "max_params", "max_bytes", "columns")
        require_between(self, 0, MAX_RATE, "init_std")
        if self.method not in TABLES:
            raise ConfigError(
                f"method must be one of {', '.join(TABLES)}, but got {self.method!r}."
                f"{suggestion(self.method, TABLES)}"
            )
        if self.method != "full" and not Budget(self.max_params, self.max_bytes).is_set:
            raise ConfigError(f"a {self.method} table needs a cap: set max_params or max_bytes")


def recluster_steps(
    config: StoreConfig | TablesConfig, total_steps: int, steps_an_epoch: int
) -> frozenset[int]:
    """The steps after which a run reclusters; none where its tables cannot be."""
    if isinstance(config, StoreConfig) or not TABLES[config.method].can_recluster:
        return frozenset()
    return frozenset(config.recluster.steps(total_steps, steps_an_epoch))
