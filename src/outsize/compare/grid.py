"""The grid of runs to compare: full tables, and each method at each budget, for every seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from outsize.errors import ConfigError
from outsize.suggestions import suggestion
from outsize.tables import TABLES
from outsize.training import RunConfig
from outsize.training.tables_config import TablesConfig

Unit = Literal["parameters", "bytes"]
UNITS: tuple[Unit, ...] = ("parameters", "bytes")
BASELINE = "full"
TUNED = "pq-tuned"
QUANTIZED = ("pq", TUNED)  # methods that need the full tables in training
_BYTES_PER_NUMBER = 4  # rows are float32
_DEFAULT_SHARES = (1000, 100, 10)


@dataclass(frozen=True)
class Cell:
    """One run of the grid.

    Attributes:
        method: A key of `outsize.TABLES`, or one of `QUANTIZED`.
        budget: The cap on each table; `None` for full tables.
        seed: Seed of the run.
        config: The configuration of the run; of a method of `QUANTIZED`, that of full tables.
        folder: Its run folder.
        unit: Unit of the budget.
    """

    method: str
    budget: int | None
    seed: int
    config: RunConfig
    folder: Path
    unit: Unit = "parameters"

    @property
    def name(self) -> str:
        """The name of the cell, unique in its grid."""
        return self.folder.name


@dataclass(frozen=True)
class Grid:
    """The methods, budgets and seeds to compare.

    Attributes:
        run: The configuration that every cell is a variant of.
        methods: Keys of `outsize.TABLES`, without "full", which is always included; or methods of
            `QUANTIZED`, for click models.
        budgets: Caps on each table, ascending; if empty, `within` chooses them.
        unit: Unit of the budgets: "parameters", or "bytes" including index maps.
        num_seeds: Runs per method and budget, with consecutive seeds from the run's own on.
    """

    run: RunConfig
    methods: tuple[str, ...]
    budgets: tuple[int, ...]
    unit: Unit = "parameters"
    num_seeds: int = 3

    def __post_init__(self) -> None:
        if self.run.negatives is not None:
            what = "retrieval" if self.run.task == "retrieval" else "link prediction"
            raise ConfigError(
                f"tables are compared by click models and classes of nodes, but this is a {what} "
                "run: choose another [model] and [data]"
            )
        if self.run.task != "click" and set(QUANTIZED) & set(self.methods):
            raise ConfigError(
                f"{' and '.join(QUANTIZED)} are compared by click models, but this run is of "
                f"another task: leave them out of --tables"
            )
        if not self.methods:
            raise ConfigError(
                f"--tables names none to compare with full tables: try {', '.join(_compressing())}"
            )
        if self.budgets and self.budgets[0] < 1:
            raise ConfigError(f"a budget must be >= 1, but got {self.budgets[0]}")
        if self.num_seeds < 1:
            raise ConfigError(f"--seeds must be >= 1, but got {self.num_seeds}")

    @property
    def dim(self) -> int:
        """Width of every table."""
        return self.run.embeddings.dim

    def rows_within(self, cap: float) -> float:
        """The number of full rows that fit a cap."""
        return cap / cost_of_rows(1, self.dim, self.unit)

    def within(self, vocabularies: Sequence[int]) -> Grid:
        """The grid with default budgets: 1/1000, 1/100 and 1/10 of the largest table."""
        if self.budgets:
            return self
        row = cost_of_rows(1, self.dim, self.unit)
        full = max(vocabularies) * row
        budgets = {max(row, full // share) for share in _DEFAULT_SHARES}
        return replace(self, budgets=tuple(sorted(budgets)))

    def cells(self, out: Path) -> list[Cell]:
        """All cells, ordered by seed, so that the first comparison is complete early."""
        columns: list[tuple[str, int | None]] = [(BASELINE, None)]
        columns += [(method, budget) for budget in self.budgets for method in self.methods]
        seeds = range(self.run.seed, self.run.seed + self.num_seeds)
        return [self._cell(method, budget, s, out) for s in seeds for method, budget in columns]

    def _cell(self, method: str, budget: int | None, seed: int, out: Path) -> Cell:
        trained = BASELINE if method in QUANTIZED else method
        cap = None if method in QUANTIZED else budget
        own = tables_config(self.run)
        recluster = own.recluster
        if not TABLES[trained].can_probe:
            recluster = replace(recluster, probe=None)
        embeddings = replace(
            own,
            method=trained,
            recluster=recluster,
            max_params=cap if self.unit == "parameters" else None,
            max_bytes=cap if self.unit == "bytes" else None,
        )
        config = replace(
            self.run,
            seed=seed,
            embeddings=embeddings,
            checkpoint=replace(self.run.checkpoint, keep=1),
        )
        parts = [method, *([] if budget is None else [self.budget_name(budget)]), str(seed)]
        return Cell(method, budget, seed, config, out / "cells" / "-".join(parts), self.unit)

    def budget_name(self, budget: int) -> str:
        """A budget as part of a folder name."""
        return f"{budget}B" if self.unit == "bytes" else str(budget)


def tables_config(run: RunConfig) -> TablesConfig:
    """The tables of a run; a store is replaced by tables of the same width and initial scale."""
    if isinstance(run.embeddings, TablesConfig):
        return run.embeddings
    return TablesConfig(dim=run.embeddings.dim, init_std=run.embeddings.init_std)


def read_methods(words: Iterable[str]) -> tuple[str, ...]:
    """Parse comma-separated methods, without duplicates; all compressing methods if none given."""
    words = list(words)
    if not words:
        return _compressing()
    methods = dict.fromkeys(_split(words))
    for method in methods:
        if method not in TABLES and method not in QUANTIZED:
            known = [*TABLES, *QUANTIZED]
            raise ConfigError(f"no table method {method!r}.{suggestion(method, known)}")
    return tuple(method for method in methods if method != BASELINE)


def read_budgets(words: Iterable[str]) -> tuple[int, ...]:
    """Parse comma-separated budgets, ascending and without duplicates; none if none given."""
    words = list(words)
    budgets = set()
    for word in _split(words):
        try:
            budgets.add(int(word))
        except ValueError:
            raise ConfigError(
                f"a budget must be a whole number, but got {word!r}: write them as 1024,4096"
            ) from None
    if words and not budgets:
        raise ConfigError("--budgets is empty: give caps on each table, such as 1024,4096")
    return tuple(sorted(budgets))


def read_unit(word: str) -> Unit:
    """Parse the unit of budgets."""
    for unit in UNITS:
        if word == unit:
            return unit
    raise ConfigError(f"--unit must be {' or '.join(UNITS)}, but got {word!r}")


def cost_of_rows(num_rows: int, dim: int, unit: Unit) -> int:
    """The cost of full rows, in a unit."""
    return num_rows * dim * (_BYTES_PER_NUMBER if unit == "bytes" else 1)


def _compressing() -> tuple[str, ...]:
    return tuple(method for method in TABLES if method != BASELINE)


def _split(words: Iterable[str]) -> list[str]:
    return [part.strip() for word in words for part in word.split(",") if part.strip()]
