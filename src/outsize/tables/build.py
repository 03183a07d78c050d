"""Tables by name, within a budget."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from outsize.contracts import EmbeddingTable
from outsize.errors import ConfigError
from outsize.spec import Budget, TableSpec
from outsize.tables.cce import CCETable
from outsize.tables.ce_concat import CEConcatTable
from outsize.tables.ce_hybrid import CEHybridTable
from outsize.tables.circular import CircularTable
from outsize.tables.dhe import DHETable
from outsize.tables.full import FullTable
from outsize.tables.hash import HashTable
from outsize.tables.hash_embedding import HashEmbeddingTable
from outsize.tables.low_rank import LowRankTable
from outsize.tables.qr import QRTable
from outsize.tables.robe import RobeTable
from outsize.tables.tensor_train import TensorTrainTable

TABLES: dict[str, type[EmbeddingTable]] = {
    "full": FullTable,
    "hash": HashTable,
    "qr": QRTable,
    "hash-embedding": HashEmbeddingTable,
    "ce-concat": CEConcatTable,
    "ce-hybrid": CEHybridTable,
    "robe": RobeTable,
    "dhe": DHETable,
    "tensor-train": TensorTrainTable,
    "low-rank": LowRankTable,
    "circular": CircularTable,
    "cce": CCETable,
}


def options_of(method: str) -> list[str]:
    """The settings that a method takes besides table, budget (which sets its size) and seed."""
    if method not in TABLES:
        raise ConfigError(f"no table method {method!r}; there are {', '.join(sorted(TABLES))}")
    arguments = inspect.signature(TABLES[method]).parameters.values()
    own = [a.name for a in arguments if a.default is not a.empty and a.name != "seed"]
    return [*own, *TABLES[method].within_options]


def build_table(
    method: str,
    spec: TableSpec,
    *,
    max_params: int | None = None,
    max_bytes: int | None = None,
    seed: int = 0,
    **options: Any,
) -> EmbeddingTable:
    """Make a table by the name of its method, as large as a budget allows and never larger.

    Args:
        method: A key of `TABLES`.
        spec: What the model asks for.
        max_params: The most trainable numbers it may hold.
        max_bytes: The most bytes it may hold, index maps included.
        seed: Seed of everything random in it.
        **options: The method's own settings.
    """
    known = options_of(method)
    for name in options:
        if name not in known:
            raise ConfigError(
                f"a {method} table has no option {name!r}; it has {', '.join(known) or 'none'}"
            )
    return TABLES[method].within(spec, Budget(max_params, max_bytes), seed=seed, **options)


def build_tables(
    method: str,
    specs: Iterable[TableSpec],
    *,
    max_params: int | None = None,
    max_bytes: int | None = None,
    seed: int = 0,
    **options: Any,
) -> dict[str, EmbeddingTable]:
    """Make the tables of a collection by the cap rule: a table within the cap stays full.

    Args:
        method: A key of `TABLES`, for the tables that do not fit.
        specs: What the model asks for.
        max_params: The cap on each table, in trainable numbers.
        max_bytes: The cap on each table, in bytes.
        seed: Seed of everything random in them.
        **options: The method's own settings.
    """
    budget = Budget(max_params, max_bytes)
    tables: dict[str, EmbeddingTable] = {}
    for spec in specs:
        num_params = spec.num_rows * spec.dim
        if method != "full" and budget.allows(num_params, num_params * spec.dtype.itemsize):
            tables[spec.name] = FullTable(spec, seed=seed)
        else:
            tables[spec.name] = build_table(
                method, spec, max_params=max_params, max_bytes=max_bytes, seed=seed, **options
            )
    return tables
