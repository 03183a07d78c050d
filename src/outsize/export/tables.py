"""Tables of an exported model: in their compressed form where the method has settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outsize.collection import EmbeddingCollection
from outsize.contracts import EmbeddingTable
from outsize.errors import ConfigError
from outsize.export.format import disagree, registered
from outsize.spec import Init, TableSpec
from outsize.tables import TABLES, Int8Table, PackedCCETable, QuantizedTable

PREFIX = "embeddings.tables."
CHUNK_ROWS = 1 << 16


@dataclass(frozen=True)
class ExportedTable:
    """A table as it is written.

    Attributes:
        facts: What `config.json` says of it: name, method, size, type and settings.
        state: Its tensors by name.
        num_parameters: Trainable numbers among them.
        index_bytes: Bytes of the other tensors: pointers and hash functions.
    """

    facts: dict[str, Any]
    state: dict[str, Tensor]
    num_parameters: int
    index_bytes: int

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state.values())


def table_kinds() -> dict[str, type[EmbeddingTable]]:
    """The methods an exported table may have."""
    return {
        **TABLES,
        "quantized": QuantizedTable,
        "int8": Int8Table,
        "packed-cce": PackedCCETable,
    }


@torch.no_grad()
def exported_tables(embeddings: EmbeddingCollection) -> list[ExportedTable]:
    """The tables that features point to, in the order of the features."""
    names = exported_names(embeddings)
    if embeddings.store is None:
        assert embeddings.tables is not None
        found = {name: embeddings.tables[name] for name in names}
        return [exported_table(name, table) for name, table in found.items()]  # type: ignore[arg-type]
    return [_full(name, _all_rows_of_store(embeddings, name)) for name in names]


def exported_names(embeddings: EmbeddingCollection) -> list[str]:
    """Names of the tables that features point to, in the order of the features."""
    return list(dict.fromkeys(feature.table for feature in embeddings.features))


@torch.no_grad()
def exported_table(name: str, table: EmbeddingTable) -> ExportedTable:
    """A table as it is written."""
    method = next((key for key, kind in table_kinds().items() if type(table) is kind), None)
    settings = None if method is None else table.settings()
    if settings is None:
        return _full(name, table.materialize().weight.detach())
    assert method is not None
    trained = {key for key, _ in table.named_parameters()}
    state = {key: value.detach() for key, value in table.state_dict().items()}
    facts = _describe(name, method, table.spec, table.spec.dtype)
    weights = next(state[key] for key in state if key in trained)
    facts |= {"dtype": _name(weights.dtype), "settings": settings}
    return ExportedTable(
        facts,
        state,
        sum(state[key].numel() for key in trained),
        sum(state[key].numel() * state[key].element_size() for key in state.keys() - trained),
    )


def _full(name: str, weight: Tensor) -> ExportedTable:
    spec = TableSpec(name, weight.shape[0], weight.shape[1])
    facts = _describe(name, "full", spec, weight.dtype) | {"settings": {}}
    return ExportedTable(facts, {"weight": weight}, weight.numel(), 0)


def _describe(name: str, method: str, spec: TableSpec, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "name": name,
        "method": method,
        "num_rows": spec.num_rows,
        "dim": spec.dim,
        "dtype": _name(dtype),
    }


def rows_of_store(
    embeddings: EmbeddingCollection, table: str
) -> tuple[Callable[[Tensor], Tensor], torch.device]:
    """A function that reads rows of a table as a model in evaluation mode does, and its device."""
    store = embeddings.store
    assert store is not None
    return lambda ids: store.read(ids, table).float(), next(store.buffers()).device


def _all_rows_of_store(embeddings: EmbeddingCollection, table: str) -> Tensor:
    read, device = rows_of_store(embeddings, table)
    ids = torch.arange(embeddings.specs[table].num_rows, device=device)
    return torch.cat([read(piece) for piece in ids.split(CHUNK_ROWS)])


def build_exported_table(facts: Mapping[str, Any], file: Any, folder: Path) -> EmbeddingTable:
    """Build a table on the meta device; its state is loaded afterwards.

    Args:
        facts: What `config.json` says of it.
        file: The opened file of weights.
        folder: The exported model, for errors.
    """
    dtype = getattr(torch, facts["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"table {facts['name']!r} is of no type {facts['dtype']!r}")
    kind = registered("table method", facts["method"], dict(sorted(table_kinds().items())))
    _require_rows(facts, file, folder)
    spec = TableSpec(facts["name"], facts["num_rows"], facts["dim"], Init("zeros"), dtype)
    with torch.device("meta"):
        return kind.from_settings(spec, facts.get("settings", {}))


def _require_rows(facts: Mapping[str, Any], file: Any, folder: Path) -> None:
    """Compare what a table holds per row with its size, before anything of that size is made."""
    names = set(file.keys())
    if facts["method"] in ("full", "int8"):
        own = "weight" if facts["method"] == "full" else "rows"
        name = f"{PREFIX}{facts['name']}.{own}"
        if name not in names or file.get_slice(name).get_shape() != [
            facts["num_rows"],
            facts["dim"],
        ]:
            raise disagree(folder, name)
    name = f"{PREFIX}{facts['name']}.pointers"
    if (
        facts["method"] != "packed-cce"
        and name in names
        and file.get_slice(name).get_shape()[:1] != [facts["num_rows"]]
    ):
        raise disagree(folder, name)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
