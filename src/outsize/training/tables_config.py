"""Embeddings as tables within a budget: the configuration of their method and reclusterings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from outsize.bounds import MAX_RATE, require_at_least, require_between
from outsize.collection import EmbeddingCollection
from outsize.errors import ConfigError
from outsize.registries import require_known
from outsize.spec import Budget, FeatureSpec, TableSpec
from outsize.tables import TABLES, build_tables
from outsize.tables.build import options_of
from outsize.training.embeddings_config import BYTES_PER_FLOAT, EmbeddingsConfig
from outsize.training.probe_config import ProbeConfig
from outsize.training.strict_toml import switch

_MAX_CLUSTERINGS = 1_000_000


@dataclass(frozen=True)
class ReclusterConfig:
    """When tables that can be reclustered are.

    Clusterings are equally spaced, and the last part of the run has none: in the experiments of
    "Clustering the Sketch", late clusterings were harmful. Two were best in ours, in one epoch and
    in ten; the paper has two in one epoch and six in ten.

    Attributes:
        count: How many clusterings.
        every: Steps between them; by default as many as spread them over the part of the run that
            is not rest.
        rest: Share of the run, 0 to 1, after the last clustering; by default 0.5 of a single epoch
            and 0.4 of more.
        weighted: Whether ids weigh as often as they have occurred so far.
        tolerance: k-means also stops when an iteration lowers its error by no more than this share
            of it; by default 0, to go on until no assignment changes, at most 50 times.
        probe: Whether ids are first trained with rows of their own, and how; `true` for the
            defaults.
    """

    count: int = 2
    every: int | None = None
    rest: float | None = None
    weighted: bool = True
    tolerance: float = 0.0
    probe: ProbeConfig | None = switch(ProbeConfig)

    def __post_init__(self) -> None:
        require_between(self, 0, _MAX_CLUSTERINGS, "count")
        require_at_least(self, 1, "every")
        require_between(self, 0, 1, "rest")
        if not 0 <= self.tolerance < 1:
            raise ConfigError(
                f"embeddings.recluster.tolerance must be >= 0 and < 1, but got {self.tolerance:g}"
            )

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
        columns: Columns that a vector is concatenated from, for methods that have them.
        shared: Whether the columns of a CCE table share one pool of codes; by default they do
            where they are equally wide, and in the text they do not.
        pointers: How a CCE table stores pointers: "plain", in whole bytes for every id, or
            "packed" (see `PackedCCETable`); "auto" packs them if the cap is in bytes.
        papers_init: Draw initial values as in each method's paper, if it says how, instead of at
            the same scale for all methods.
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
    pointers: Literal["auto", "plain", "packed"] = "auto"
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
        if self.recluster.probe is not None and not TABLES[self.method].can_probe:
            able = ", ".join(name for name, kind in TABLES.items() if kind.can_probe)
            raise ConfigError(
                f"recluster.probe is for tables of the method {able}, but method = "
                f"{self.method!r}: leave it out"
            )

    @property
    def weighs_ids(self) -> bool:  # noqa: D102
        return self.recluster.weighted

    @property
    def recluster_tolerance(self) -> float:  # noqa: D102
        return self.recluster.tolerance

    @property
    def probe(self) -> ProbeConfig | None:  # noqa: D102
        return self.recluster.probe

    @property
    def table_rate(self) -> float | None:  # noqa: D102
        return self.learning_rate

    def build(  # noqa: D102
        self, features: Sequence[FeatureSpec], specs: Sequence[TableSpec], seed: int
    ) -> EmbeddingCollection:
        asked = {
            "columns": self.columns,
            "shared": self.shared,
            "pointers": None if self.pointers == "auto" else self.pointers,
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
        probed = 0
        if self.probe is not None:
            larger = [s for s in specs if self._most_params(s) < s.num_rows * s.dim]
            probed = sum(self.probe.num_bytes(spec, dense_state) for spec in larger)
        return num_params * BYTES_PER_FLOAT * (1 + dense_state) + probed

    def recluster_steps(self, total_steps: int, steps_per_epoch: int) -> frozenset[int]:  # noqa: D102
        if not TABLES[self.method].can_recluster:
            return frozenset()
        return frozenset(self.recluster.steps(total_steps, steps_per_epoch))

    def _most_params(self, spec: TableSpec) -> int:
        """Trainable numbers of one table at most."""
        full = spec.num_rows * spec.dim
        if self.max_params is not None:
            return min(full, self.max_params)
        return full if self.max_bytes is None else min(full, self.max_bytes // BYTES_PER_FLOAT)
