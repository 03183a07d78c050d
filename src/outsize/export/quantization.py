"""Quantizing the tables of a trained model, so that its export is smaller."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outsize.collection import EmbeddingCollection
from outsize.contracts import EmbeddingTable
from outsize.errors import ConfigError
from outsize.export.tables import CHUNK_ROWS, exported_names, exported_table, rows_of_store
from outsize.hashing import derive_seed
from outsize.models import ClickModel, ClickModelConfig, RetrievalModel, RetrievalModelConfig
from outsize.nn.rows import pq_size, table_from_rows
from outsize.spec import Budget, Init, TableSpec
from outsize.suggestions import suggestion
from outsize.tables import FullTable, Int8Table
from outsize.tables.pointers import pointer_type

METHODS = ("int8", "pq")
_CODES = 256
_COLUMN_WIDTH = 2


@dataclass(frozen=True)
class Quantization:
    """How the tables of an exported model are quantized.

    Attributes:
        method: "int8" for rows of 8-bit integers with a scale per row, "pq" for product
            quantization.
        columns: For "pq", columns per vector, each a pointer; by default one for 2 numbers.
        codes: For "pq", codes per column; by default 256, so that a pointer is one byte.
        max_bytes: For "pq" and instead of `codes`, the most bytes that all tables may have
            together; each of those with `min_rows` rows is compressed by the same factor.
        min_rows: For "pq", tables with fewer rows stay as they are.
    """

    method: str
    columns: int | None = None
    codes: int | None = None
    max_bytes: int | None = None
    min_rows: int = 1_000

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(
                f"no quantization {self.method!r:.40}.{suggestion(self.method, METHODS)}"
            )
        given = {"columns": self.columns, "codes": self.codes, "max_bytes": self.max_bytes}
        for name, value in given.items():
            if value is None:
                continue
            if self.method != "pq":
                raise ConfigError(f"{name} is for product quantization: use pq, or leave it out")
            if value < 1:
                raise ConfigError(f"{name} must be >= 1, but got {value}")
        if self.codes is not None and self.max_bytes is not None:
            raise ConfigError("codes and max_bytes both decide the size: give one of them")


@dataclass(frozen=True)
class TableChange:
    """What quantization did to a table.

    Attributes:
        name: The table.
        method_before: Its method before.
        method: Its method now.
        bytes_before: Bytes before, index maps included.
        bytes: Bytes now.
        relative_error: Mean squared error of its vectors, as a share of their variance.
        reason: Why it stays as it is; empty where it does not.
    """

    name: str
    method_before: str
    method: str
    bytes_before: int
    bytes: int
    relative_error: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class _Source:
    """A trained table: how its rows are read, and what it is as it stands."""

    spec: TableSpec
    read: Callable[[Tensor], Tensor]
    device: torch.device
    table: EmbeddingTable | None
    method: str
    num_bytes: int

    def rows(self) -> Tensor:
        ids = torch.arange(self.spec.num_rows, device=self.device)
        return torch.cat([self.read(some) for some in ids.split(CHUNK_ROWS)])

    def unchanged(self) -> EmbeddingTable:
        if self.table is not None:
            return self.table
        rows = self.rows()
        spec = TableSpec(self.spec.name, len(rows), rows.shape[1], Init("zeros"), rows.dtype)
        return FullTable.of_rows(spec, rows)


def quantize_click_model(
    model: ClickModel, config: ClickModelConfig, quantization: Quantization
) -> tuple[ClickModel, list[TableChange]]:
    """A click model over quantized tables, with the same dense weights; the given one is unchanged.

    Args:
        model: The trained model, over tables or a store.
        config: The configuration that it was built from.
        quantization: How its tables are quantized.

    Returns:
        The new model in evaluation mode, and what became of each table.
    """
    embeddings, changes = quantize_embeddings(model.embeddings, quantization)
    made = config.build(model.num_dense, embeddings, seed=0)
    _copy_dense(model, made)
    return made.eval(), changes


def quantize_retrieval_model(
    model: RetrievalModel, config: RetrievalModelConfig, quantization: Quantization
) -> tuple[RetrievalModel, list[TableChange]]:
    """A retrieval model over quantized tables; as `quantize_click_model`."""
    embeddings, changes = quantize_embeddings(model.embeddings, quantization)
    made = config.build(
        embeddings, model.query_features, model.item_features, 0, sorted(model.numbers)
    )
    made.use_tokenizer(model.tokenizer)
    _copy_dense(model, made)
    return made.eval(), changes


@torch.no_grad()
def quantize_embeddings(
    embeddings: EmbeddingCollection, quantization: Quantization
) -> tuple[EmbeddingCollection, list[TableChange]]:
    """The same features over quantized tables, and what became of each table.

    A table is replaced only if that makes it smaller.
    """
    sources = [_source(embeddings, name) for name in exported_names(embeddings)]
    shares = _shares(sources, quantization)
    tables: dict[str, EmbeddingTable] = {}
    changes = []
    for source in sources:
        name = source.spec.name
        made, reason = _quantized(source, quantization, shares.get(name))
        if made is None:
            made, method, num_bytes, error = (
                source.unchanged(),
                source.method,
                source.num_bytes,
                0.0,
            )
        else:
            method = "int8" if isinstance(made, Int8Table) else "quantized"
            num_bytes, error = made.memory_use().total_bytes, _relative_error(source, made)
        tables[name] = made
        changes.append(
            TableChange(name, source.method, method, source.num_bytes, num_bytes, error, reason)
        )
    return EmbeddingCollection(embeddings.features, tables), changes


def quantization_facts(
    quantization: Quantization, changes: Sequence[TableChange], before: Mapping[str, Any]
) -> dict[str, Any]:
    """What the card of a quantized export says, as plain values.

    Args:
        quantization: How it was quantized.
        changes: What became of each table.
        before: The metrics of the model before, by split; none if they were not measured.
    """
    return {
        "method": quantization.method,
        "table_bytes_before": sum(change.bytes_before for change in changes),
        "table_bytes": sum(change.bytes for change in changes),
        "metrics_before": dict(before),
        "tables": [dataclasses.asdict(change) for change in changes],
    }


def _source(embeddings: EmbeddingCollection, name: str) -> _Source:
    spec = dataclasses.replace(embeddings.specs[name], name=name, dtype=torch.float32)
    if embeddings.store is not None:
        num_bytes = spec.num_rows * spec.dim * spec.dtype.itemsize
        read, device = rows_of_store(embeddings, name)
        return _Source(spec, read, device, None, "full", num_bytes)
    assert embeddings.tables is not None
    table = embeddings.tables[name]
    assert isinstance(table, EmbeddingTable)
    device = next(iter([*table.parameters(), *table.buffers()])).device
    written = exported_table(name, table)
    return _Source(
        spec, lambda ids: table.lookup(ids).float(), device, table,
        written.facts["method"], written.num_bytes,
    )  # fmt: skip


def _shares(sources: Sequence[_Source], quantization: Quantization) -> dict[str, int]:
    """The bytes that each table may have, where there is a budget for all of them."""
    if quantization.max_bytes is None:
        return {}
    large = [source for source in sources if source.spec.num_rows >= quantization.min_rows]
    total = sum(source.num_bytes for source in large)
    small = sum(source.num_bytes for source in sources) - total
    if quantization.max_bytes >= small + total:
        return {source.spec.name: source.num_bytes for source in sources}
    left = quantization.max_bytes - small
    if left <= 0:
        raise ConfigError(
            f"max_bytes = {quantization.max_bytes:,}, but the tables of fewer than "
            f"{quantization.min_rows:,} rows, which stay as they are, have {small:,}: raise it, "
            "or lower min_rows"
        )
    return {source.spec.name: left * source.num_bytes // total for source in large}


def _quantized(
    source: _Source, quantization: Quantization, share: int | None
) -> tuple[EmbeddingTable | None, str]:
    """A quantized table, or why there is none."""
    spec = source.spec
    if quantization.method == "int8":
        if spec.num_rows * (spec.dim + 4) >= source.num_bytes:
            return None, f"{_kind(source)}: int8 rows would not be smaller"
        return Int8Table.from_rows(spec, source.read, source.device), ""
    if spec.num_rows < quantization.min_rows:
        return None, f"fewer than {quantization.min_rows:,} rows"
    if share is not None and share >= source.num_bytes:
        return None, "within max_bytes already"
    columns, codes = _pq_size(spec, quantization, share)
    pointers = spec.num_rows * columns * pointer_type(codes).itemsize
    if codes * spec.dim * spec.dtype.itemsize + pointers >= source.num_bytes:
        return None, f"{_kind(source)}: codes and pointers would not be smaller"
    seed = derive_seed(0, "quantize", spec.name)
    options = {"columns": columns, "codes": codes}
    return table_from_rows("pq", spec, source.rows(), Budget(), seed=seed, options=options), ""


def _pq_size(spec: TableSpec, quantization: Quantization, share: int | None) -> tuple[int, int]:
    columns = quantization.columns
    if share is not None:
        return pq_size(spec, Budget(max_bytes=share), columns)
    if columns is None:
        columns = -(-spec.dim // _COLUMN_WIDTH)
    codes = min(quantization.codes or _CODES, spec.num_rows)
    return pq_size(spec, Budget(), columns, codes)


def _kind(source: _Source) -> str:
    return "dim is small" if source.method == "full" else f"a {source.method} table is compressed"


def _relative_error(source: _Source, table: EmbeddingTable) -> float:
    """The mean squared error of a table's vectors, as a share of the variance of the trained."""
    num_rows = source.spec.num_rows
    error, squares = 0.0, 0.0
    sums = torch.zeros(source.spec.dim, dtype=torch.float64, device=source.device)
    for ids in torch.arange(num_rows, device=source.device).split(CHUNK_ROWS):
        rows = source.read(ids).double()
        error += float((table.lookup(ids).double() - rows).square().sum())
        squares += float(rows.square().sum())
        sums += rows.sum(dim=0)
    variance = squares - float(sums.square().sum()) / num_rows
    return error / variance if variance > 0 else float(error > 0)


def _copy_dense(model: torch.nn.Module, made: torch.nn.Module) -> None:
    own = made.state_dict()
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if not name.startswith("embeddings."):
                own[name].copy_(weight)
