"""Exporting trained models to folders that load without the training code, and loading them.

`model.safetensors` holds the dense weights and every row of every table, under the names they have
in the loaded module; clocks, optimizer state and caches are not exported. `config.json` holds what
is needed to build that module (kind and shape of the model, features, tables) and facts about its
training. This module does not depend on runs, data, stores or optimizers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outsize.collection import EmbeddingCollection
from outsize.errors import ConfigError, ExportError
from outsize.files import flaw_of, reason_of, whole_folder, write_json, write_tensors
from outsize.json_files import FILE_FACTS, OneOf, SchemaError, Whole, check, read_json
from outsize.models import CLICK_MODELS, ClickModel, ClickModelConfig
from outsize.registries import name_of
from outsize.spec import FeatureSpec, Init, TableSpec
from outsize.tables import build_table
from outsize.version import __version__

FORMAT = 1
_CHUNK_ROWS = 1 << 16
_CHUNK_NUMBERS = 1 << 24
_TABLE = {"name": str, "method": str, "num_rows": Whole(1), "dim": Whole(1), "dtype": str}
_CONFIG = {
    "model": {"kind": str},
    "num_dense": Whole(),
    "features": [{"name": str}],
    "tables": [_TABLE],
    "files": {"model.safetensors": FILE_FACTS},
}
_WIDENED = (torch.float16, torch.bfloat16)
"""Dtypes of dense weights that are loaded as float32, which represents them exactly."""


def write_exported(
    folder: str | Path,
    model: ClickModel,
    config: ClickModelConfig,
    training: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a model to a folder, atomically.

    Compressed tables are written as full tables.

    Args:
        folder: The folder to write; it must be new or empty.
        model: The model.
        config: The configuration that the model was built from.
        training: Facts about its training to store in `config.json`, as plain values.

    Returns:
        A summary: the kind of the model, its number of parameters, and bytes.

    Raises:
        ExportError: The folder cannot be written, or a weight is NaN or infinite.
    """
    folder = Path(folder)
    require_free(folder)
    kind = name_of(CLICK_MODELS, config)
    rows = {table: _all_rows(model.embeddings, table) for table in _tables_read(model.embeddings)}
    state = {
        name: value
        for name, value in model.state_dict().items()
        if not name.startswith("embeddings.")
    }
    state |= {f"embeddings.tables.{table}.weight": weight for table, weight in rows.items()}
    for name, weight in state.items():
        if not _is_finite(weight):
            raise ExportError(
                f"{name!r} of the model holds NaN or infinite numbers, and so would its logits: "
                "train it again with a lower learning rate or train.clip_norm"
            )
    try:
        final = folder.resolve()
        with whole_folder(final, final.with_name(f".{final.name}.exporting")) as partial:
            facts = write_tensors(partial / "model.safetensors", state)
            content = {
                "format": FORMAT,
                "outsize": __version__,
                "model": {"kind": kind, **dataclasses.asdict(config)},  # type: ignore[call-overload]
                "num_dense": model.num_dense,
                "features": [dataclasses.asdict(f) for f in model.embeddings.features],
                "tables": [_describe(table, weight) for table, weight in rows.items()],
                "training": dict(training or {}),
                "files": {"model.safetensors": facts},
            }
            write_json(partial / "config.json", content)
    except OSError as error:
        raise ExportError(
            f"could not write {folder}: {reason_of(error)}; nothing is left there"
        ) from error
    num_parameters = sum(tensor.numel() for tensor in state.values())
    return {
        "out": str(folder),
        "model": kind,
        "num_parameters": num_parameters,
        "bytes": facts["bytes"],
    }


def load_exported(folder: str | Path) -> ClickModel:
    """Load an exported model to the CPU, after verifying the checksum of its weights.

    Args:
        folder: A folder that `outsize export` wrote.

    Returns:
        A module in evaluation mode that takes `(dense, ids)` and returns the same logits as the
        trained model; its embeddings are full tables.
    """
    folder = Path(folder)
    config = _read_config(folder)
    try:
        flaw = flaw_of(folder / "model.safetensors", config["files"]["model.safetensors"])
    except PermissionError as error:
        raise _forbidden(folder / "model.safetensors", error) from error
    if flaw:
        raise _unreadable(folder, f"model.safetensors: {flaw}")
    try:
        _require_rows(config["tables"], folder)
        model = _build(config)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError) as error:
        if isinstance(error, ExportError):
            raise
        raise _unreadable(folder, f"config.json: {type(error).__name__}: {_line(error)}") from None
    _load_weights(model, folder)
    return model.eval()


def require_free(folder: Path) -> None:
    """Raise an error if a path is a file or a folder that is not empty."""
    try:
        if folder.is_dir():
            if any(folder.iterdir()):
                raise ConfigError(f"{folder} is not empty: choose another folder for the export")
        elif folder.exists():
            raise ConfigError(f"{folder} is a file: choose another folder for the export")
    except OSError as error:
        raise ExportError(
            f"could not write {folder}: {reason_of(error)}; choose another folder for the export"
        ) from error


def _tables_read(embeddings: EmbeddingCollection) -> list[str]:
    """The tables that features point to, in the order of the features."""
    return list(dict.fromkeys(feature.table for feature in embeddings.features))


@torch.no_grad()
def _all_rows(embeddings: EmbeddingCollection, table: str) -> Tensor:
    """All rows of a table, as a model in evaluation mode reads them."""
    if embeddings.store is None:
        assert embeddings.tables is not None
        weight: Tensor = embeddings.tables[table].materialize().weight  # type: ignore[operator]
        return weight.detach()
    store, ids = embeddings.store, torch.arange(embeddings.specs[table].num_rows)
    device = next(store.buffers()).device
    pieces = [store.read(piece.to(device), table).float() for piece in ids.split(_CHUNK_ROWS)]
    return torch.cat(pieces)


def _describe(table: str, weight: Tensor) -> dict[str, Any]:
    dtype = str(weight.dtype).removeprefix("torch.")
    num_rows, dim = weight.shape
    return {"name": table, "method": "full", "num_rows": num_rows, "dim": dim, "dtype": dtype}


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = read_json(folder / "config.json", {"format": OneOf(int, str)})
        found = config["format"]
        if found != FORMAT:
            raise ExportError(
                f"{folder} has export format {found}, but this version reads format {FORMAT}: "
                f"load it with outsize {config.get('outsize')}"
            )
        check(config, _CONFIG)
    except (FileNotFoundError, NotADirectoryError):
        raise ExportError(
            f"{folder} holds no exported model: there is no config.json; "
            "write one with `outsize export RUN DIR`"
        ) from None
    except PermissionError as error:
        raise _forbidden(folder / "config.json", error) from error
    except OSError as error:
        raise _unreadable(folder, f"config.json: {reason_of(error)}") from None
    except SchemaError as error:
        raise _unreadable(
            folder, f"config.json is not one that an export writes: {error}"
        ) from None
    return config


def _build(config: Mapping[str, Any]) -> ClickModel:
    """Build the module that a configuration describes; its weights are loaded afterwards."""
    shape = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in config["model"].items()
    }
    kind = shape.pop("kind")
    if kind not in CLICK_MODELS:
        raise ConfigError(
            f"no model {kind!r}; there are {', '.join(CLICK_MODELS)}: if it is your own, import "
            "its module first"
        )
    tables = {}
    for table in config["tables"]:
        dtype = getattr(torch, table["dtype"], None)
        if not isinstance(dtype, torch.dtype):
            raise ConfigError(f"table {table['name']!r} is of no type {table['dtype']!r}")
        spec = TableSpec(table["name"], table["num_rows"], table["dim"], Init("zeros"), dtype)
        tables[spec.name] = build_table(table["method"], spec)
    features = [FeatureSpec(**feature) for feature in config["features"]]
    embeddings = EmbeddingCollection(features, tables)
    return CLICK_MODELS[kind](**shape).build(config["num_dense"], embeddings, seed=0)


def _require_rows(tables: Iterable[Mapping[str, Any]], folder: Path) -> None:
    """Check that the file holds each table in its size, before memory for it is allocated."""
    with _opened(folder) as file:
        names = set(file.keys())
        for table in tables:
            name = f"embeddings.tables.{table['name']}.weight"
            size = [table["num_rows"], table["dim"]]
            if name not in names or file.get_slice(name).get_shape() != size:
                raise _disagree(folder, name)


@torch.no_grad()
def _load_weights(model: ClickModel, folder: Path) -> None:
    """Load a model's weights from its file, one tensor at a time."""
    wanted = model.state_dict()
    with _opened(folder) as file:
        if set(file.keys()) != set(wanted):
            raise _disagree(folder, min(set(file.keys()) ^ set(wanted)))
        for name, weight in wanted.items():
            found = file.get_tensor(name)
            if found.shape != weight.shape:
                raise _disagree(folder, name)
            is_widened = weight.dtype == torch.float32 and found.dtype in _WIDENED
            is_row = name.startswith("embeddings.")
            if found.dtype != weight.dtype and (is_row or not is_widened):
                kinds = [str(t.dtype).removeprefix("torch.") for t in (found, weight)]
                raise _unreadable(folder, f"{name!r} is {kinds[0]} where {kinds[1]} belongs")
            if not _is_finite(found):
                raise _unreadable(folder, f"{name!r} holds NaN or infinite numbers")
            weight.copy_(found)


@contextmanager
def _opened(folder: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / "model.safetensors", framework="pt", device="cpu") as file:
            yield file
    except SafetensorError as error:
        raise _unreadable(
            folder, f"model.safetensors is not a safetensors file ({error})"
        ) from None


def _is_finite(weight: Tensor) -> bool:
    """Whether all numbers are finite, checked in chunks of bounded size."""
    if not weight.is_floating_point():
        return True
    pieces = weight.detach().reshape(-1).split(_CHUNK_NUMBERS)
    return all(bool(piece.isfinite().all()) for piece in pieces)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _disagree(folder: Path, name: str) -> ExportError:
    return _unreadable(folder, f"weights and config.json disagree about {name!r}")


def _forbidden(path: Path, error: OSError) -> ExportError:
    return ExportError(f"{path} cannot be read: {reason_of(error)}; let this user read it")


def _unreadable(folder: Path, fact: str) -> ExportError:
    return ExportError(f"the model in {folder} cannot be loaded: {fact}; export it again")
