"""Tables by name, within a budget."""

from __future__ import annotations

from typing import Any

from outsize.contracts import EmbeddingTable
from outsize.errors import ConfigError
from outsize.spec import Budget, TableSpec
from outsize.tables.full import FullTable

TABLES: dict[str, type[EmbeddingTable]] = {"full": FullTable}


def build_table(
    method: str,
    spec: TableSpec,
    *,
    max_params: int | None = None,
    max_bytes: int | None = None,
    seed: int = 0,
    **options: Any,
) -> EmbeddingTable:
    """Make a table by the name of its method, never larger than asked.

    Args:
        method: A key of `TABLES`.
        spec: What the model asks for.
        max_params: The most trainable numbers it may hold.
        max_bytes: The most bytes it may hold, index maps included.
        seed: Seed of everything random in it.
        **options: The method's own settings.
    """
    if method not in TABLES:
        raise ConfigError(f"no table method {method!r}; there are {', '.join(sorted(TABLES))}")
    return TABLES[method].within(spec, Budget(max_params, max_bytes), seed=seed, **options)
