"""Writing a model to a folder of its own, atomically."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from outsize.errors import ExportError
from outsize.export.card import write_card
from outsize.export.format import CONFIG, ENCODER, VOCABULARIES, WEIGHTS, format_of, require_free
from outsize.export.tables import PREFIX, ExportedTable, exported_tables
from outsize.export.weights import require_finite
from outsize.files import reason_of, sha256_of, whole_folder, write_json, write_tensors
from outsize.models import (
    CLICK_MODELS,
    ClickModel,
    ClickModelConfig,
    GraphModel,
    RetrievalModel,
)
from outsize.registries import name_of
from outsize.version import __version__

if TYPE_CHECKING:
    from outsize.data.encoding.row_encoder import RowEncoder

BATCH_SIZE = 16_384
"""Rows that a loaded model scores at a time, where nothing else is asked for."""


def write_exported(
    folder: str | Path,
    model: ClickModel,
    config: ClickModelConfig,
    training: Mapping[str, Any] | None = None,
    *,
    encoder: RowEncoder | None = None,
    batch_size: int = BATCH_SIZE,
    data: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a model to a folder, atomically.

    Tables are written in their compressed form, and rows of a store as full tables. A table of a
    method without `settings` is written as full rows.

    Args:
        folder: The folder to write; it must be new or empty.
        model: The model.
        config: The configuration that the model was built from.
        training: Facts about its training, as plain values: its "step", and "metrics" by split that
            were measured on these weights.
        encoder: How raw values become its inputs (see `ClickData.row_encoder`); without it, the
            loaded model takes dense features and ids only.
        batch_size: Rows that the loaded model scores at a time; with that of the evaluation, its
            logits are those of the evaluation bit for bit.
        data: Facts about the training data for the card, as plain values.

    Returns:
        A summary: the kind of the model, its number of parameters, and bytes.

    Raises:
        ExportError: The folder cannot be written, or a weight is NaN or infinite.
    """
    facts: dict[str, Any] = {"num_dense": model.num_dense, "encoding": None}
    files: dict[str, dict[str, Tensor]] = {}
    if encoder is not None:
        from outsize.data.encoding.encoder_files import encoder_state

        facts["encoding"], files[VOCABULARIES] = encoder_state(encoder)
    return write_model(
        folder, model, config, CLICK_MODELS, facts, files, training, data, batch_size
    )


def _facts_of_folder(folder: Path) -> dict[str, dict[str, Any]]:
    """The size and checksum of each file of a folder, by its path in it."""
    facts = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        facts[name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    return facts


def _table_state(tables: list[ExportedTable]) -> dict[str, Tensor]:
    """The tensors of tables, by the names they have in the loaded module."""
    return {
        f"{PREFIX}{table.facts['name']}.{name}": tensor
        for table in tables
        for name, tensor in table.state.items()
    }


def write_model(
    folder: str | Path,
    model: ClickModel | RetrievalModel | GraphModel,
    config: Any,
    kinds: Mapping[str, object],
    facts: Mapping[str, Any],
    files: Mapping[str, Mapping[str, Tensor]],
    training: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    batch_size: int = BATCH_SIZE,
) -> dict[str, Any]:
    """Write a model with its tables, its configuration and its card; all of them or nothing.

    Args:
        folder: The folder; new or empty.
        model: The model.
        config: The configuration that the model was built from, of one of the `kinds`.
        kinds: The registry of such models.
        facts: What the configuration says besides the model, its tables and its training.
        files: Name → tensors of each file of tensors besides the weights.
        training: As for `write_exported`.
        data: Facts about the training data, for the card.
        batch_size: Rows that the loaded model scores at a time.

    Returns:
        A summary.
    """
    folder, tables = Path(folder), exported_tables(model.embeddings)
    settings = dataclasses.asdict(config)
    save_encoder: Callable[[Path], None] | None = getattr(model, "write_encoder", None)
    if save_encoder is not None:
        settings["path"] = ENCODER
    dense: dict[str, Tensor] = {}
    if save_encoder is None:
        state = model.state_dict().items()
        dense = {name: value for name, value in state if not name.startswith("embeddings.")}
    content = {
        "task": config.task,
        "model": {"kind": name_of(kinds, config), **settings},
        **facts,
        "features": [dataclasses.asdict(feature) for feature in model.embeddings.features],
        "tables": [table.facts for table in tables],
        "batch_size": batch_size,
        "training": dict(training or {}),
    }
    files = {WEIGHTS: {**dense, **_table_state(tables)}, **files}
    require_free(folder)
    for tensors in files.values():
        require_finite(tensors)
    try:
        final = folder.resolve()
        with whole_folder(final, final.with_name(f".{final.name}.exporting")) as partial:
            written = {
                name: write_tensors(partial / name, tensors) for name, tensors in files.items()
            }
            version = {"format": format_of(content), "outsize": __version__}
            config = {**version, **content, "files": written}
            if save_encoder is not None:
                save_encoder(partial / ENCODER)
                config["encoder"] = _facts_of_folder(partial / ENCODER)
            write_json(partial / CONFIG, config)
            write_card(partial, config, tables, dense, dict(data or {}))
    except OSError as error:
        raise ExportError(
            f"could not write {folder}: {reason_of(error)}; nothing is left there"
        ) from error
    own = dense.values() if save_encoder is None else model.parameters()
    return {
        "out": str(folder),
        "model": content["model"]["kind"],
        "num_parameters": sum(w.numel() for w in own) + sum(t.num_parameters for t in tables),
        "bytes": written[WEIGHTS]["bytes"],
        "files": {name: facts["bytes"] for name, facts in written.items()},
    }
