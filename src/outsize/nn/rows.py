"""Tables made from trained rows, within a budget: by product quantization, or by any method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from outsize.contracts import EmbeddingTable
from outsize.errors import BudgetError, ConfigError, DataError, NonFiniteError
from outsize.spec import Budget, Init, TableSpec
from outsize.suggestions import suggestion
from outsize.tables import TABLES, FullTable, build_table, quantize
from outsize.tables.columns import columns_of
from outsize.tables.pointers import pointer_type
from outsize.tables.sizing import Cost, largest_size

PQ = "pq"
_MAX_CODES = 256
_PQ_OPTIONS = ("columns", "codes", "iterations")


def require_method(method: str, *, from_rows: bool) -> None:
    """Raise unless a method is known, and `pq` is asked for only where there are trained rows."""
    if method == PQ and not from_rows:
        raise ConfigError(
            "method 'pq' compresses trained rows: use from_pretrained or outsize.compress_, or "
            "train with method='cce'"
        )
    if method not in TABLES and method != PQ:
        raise ConfigError(f"no table method {method!r}.{suggestion(method, [*TABLES, PQ])}")


def table_from_rows(
    method: str,
    spec: TableSpec,
    rows: Float[Tensor, "num_rows dim"],
    budget: Budget,
    *,
    seed: int = 0,
    ignored: int | None = None,
    progress: bool = False,
    options: Mapping[str, Any] | None = None,
) -> EmbeddingTable:
    """Make a table whose vectors are as close to trained rows as a method and a budget allow.

    Args:
        method: "pq", or a key of `outsize.TABLES`.
        spec: The table; its initial scale is replaced by that of the rows.
        rows: The trained rows; the table is made on their device, and shares no memory with them.
        budget: The most the table may cost.
        seed: Seed of everything random.
        ignored: An id whose row need not be kept, such as padding.
        progress: Show a progress bar on standard error, if the method clusters.
        options: The method's own settings; for "pq" `columns`, `codes` and `iterations`.
    """
    require_method(method, from_rows=True)
    rows = rows.detach()
    if rows.is_meta:
        raise DataError(f"table {spec.name!r}: its trained rows are on the meta device: load them")
    if not bool(torch.isfinite(rows).all()):
        raise NonFiniteError(
            f"table {spec.name!r}: its trained rows hold NaN or infinity and cannot be compressed"
        )
    counts = None
    if ignored is not None and spec.num_rows > 1:
        counts = torch.ones(spec.num_rows, dtype=torch.int64)
        counts[ignored] = 0
    if method == PQ:
        return _quantized(spec, rows, budget, counts, seed, progress, dict(options or {}))
    scale = float(rows.float().std(unbiased=False))
    table = build_table(
        method,
        replace(spec, init=Init("normal", scale)),
        max_params=budget.max_params,
        max_bytes=budget.max_bytes,
        seed=seed,
        **(options or {}),
    ).to(rows.device)
    table.fit_rows(rows, counts, progress=progress)
    return table


def pq_size(
    spec: TableSpec, budget: Budget, columns: int | None = None, codes: int | None = None
) -> tuple[int, int]:
    """The columns and codes of the most exact product quantizer within a budget.

    An id has columns · log₂(codes) bits. Within `max_bytes`, the columns that give it the most are
    chosen among those that divide `dim`, with at most 256 codes, so that a pointer is one byte.

    Args:
        spec: The table.
        budget: The most the table may cost, pointers included.
        columns: Columns per vector, if they are fixed; with `max_params` they are 4 by default.
        codes: Codes per column, if they are fixed.
    """
    if codes is not None:
        columns = columns_of(spec, columns)
        cost = _pq_cost(spec, columns, codes)
        what = f"table {spec.name!r}: a pq table of {columns} columns and {codes} codes"
        budget.require(what, cost.num_params, cost.num_bytes(spec))
        return columns, codes
    divisors = [c for c in range(1, spec.dim + 1) if spec.dim % c == 0]
    fixed = columns is not None or budget.max_bytes is None
    choices = [columns_of(spec, columns)] if fixed else divisors
    sizes: dict[int, int] = {}
    for choice in choices:
        try:
            sizes[choice] = _most_codes(spec, budget, choice)
        except BudgetError:
            if not sizes:  # not even the fewest columns fit
                raise
    best = max(sizes, key=lambda choice: (choice * math.log2(sizes[choice]), -choice))
    return best, sizes[best]


def _most_codes(spec: TableSpec, budget: Budget, columns: int) -> int:
    """The most codes of a product quantizer of some columns within a budget, at most 256."""
    return largest_size(
        PQ,
        spec,
        budget,
        partial(_pq_cost, spec, columns),
        least=min(2, spec.num_rows),
        most=min(_MAX_CODES, spec.num_rows),
    )


def _pq_cost(spec: TableSpec, columns: int, codes: int) -> Cost:
    codes = min(codes, spec.num_rows)
    return Cost(codes * spec.dim, spec.num_rows * columns * pointer_type(codes).itemsize)


def _quantized(
    spec: TableSpec,
    rows: Float[Tensor, "num_rows dim"],
    budget: Budget,
    counts: Tensor | None,
    seed: int,
    progress: bool,
    options: dict[str, Any],
) -> EmbeddingTable:
    for name in options:
        if name not in _PQ_OPTIONS:
            raise ConfigError(f"a pq table has no option {name!r}; it has {', '.join(_PQ_OPTIONS)}")
    columns, codes = pq_size(spec, budget, options.pop("columns", None), options.pop("codes", None))
    source = FullTable.of_rows(spec, rows)
    return quantize(source, columns, codes, counts=counts, seed=seed, progress=progress, **options)
