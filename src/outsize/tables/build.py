"""Tables by name, within a budget."""

from __future__ import annotations

from typing import Any, Protocol

from outsize.contracts import EmbeddingTable
from outsize.errors import ConfigError
from outsize.spec import TableSpec
from outsize.tables.full import FullTable


class TableMethod(Protocol):
    """What a representation offers besides being an `EmbeddingTable`."""

    def __call__(self, spec: TableSpec, *, seed: int = 0, **options: Any) -> EmbeddingTable:
        """Make the table."""
        ...

    def num_parameters(self, spec: TableSpec) -> int:
        """What the table would hold, without making it."""
        ...


TABLES: dict[str, TableMethod] = {"full": FullTable}


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
    if max_params is not None and max_bytes is not None:
        raise ConfigError("give a budget as max_params or as max_bytes, not as both")
    kind = TABLES[method]
    needed = kind.num_parameters(spec)
    if max_params is not None and needed > max_params:
        raise ConfigError(
            f"table {spec.name!r}: method {method!r} needs {needed:,} parameters, more than "
            f"max_params={max_params:,}; raise the budget or choose a compressed method"
        )
    if max_bytes is not None and needed * spec.dtype.itemsize > max_bytes:
        raise ConfigError(
            f"table {spec.name!r}: method {method!r} needs {needed * spec.dtype.itemsize:,} bytes, "
            f"more than max_bytes={max_bytes:,}; raise the budget or choose a compressed method"
        )
    return kind(spec, seed=seed, **options)
