"""Writing a model to a folder of its own, atomically."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from outsize.errors import ExportError
from outsize.export.card import write_card
from outsize.export.format import CONFIG, ENCODER, VOCABULARIES, WEIGHTS, format_of, require_free
from outsize.export.tables import PREFIX, ExportedTable, exported_tables
from outsize.export.weights import require_finite
from outsize.files import reason_of, whole_folder, write_json, write_tensors
from outsize.models import CLICK_MODELS, ClickModel, ClickModelConfig
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
    tables = exported_tables(model.embeddings)
    content = {
        "task": "click",
        "model": {"kind": name_of(CLICK_MODELS, config), **dataclasses.asdict(config)},  # type: ignore[call-overload]
        "num_dense": model.num_dense,
        "features": [dataclasses.asdict(feature) for feature in model.embeddings.features],
        "tables": [table.facts for table in tables],
        "batch_size": batch_size,
        "training": dict(training or {}),
    }
    vocabularies: dict[str, Tensor] = {}
    content["encoding"] = None
    if encoder is not None:
        from outsize.data.encoding.encoder_files import encoder_state

        content["encoding"], vocabularies = encoder_state(encoder)
    dense = dense_state(model)
    files = {WEIGHTS: {**dense, **table_state(tables)}}
    if encoder is not None:
        files[VOCABULARIES] = vocabularies
    return write_folder(Path(folder), content, files, tables, dense, dict(data or {}))


def _facts_of_folder(folder: Path) -> dict[str, dict[str, Any]]:
    """The size and checksum of each file of a folder, by its path in it."""
    facts = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        name = path.relative_to(folder).as_posix()
        facts[name] = {"bytes": path.stat().st_size, "sha256": digest}
    return facts


def dense_state(model: Any) -> dict[str, Tensor]:
    """The weights of a model besides its embeddings."""
    state = model.state_dict().items()
    return {name: value for name, value in state if not name.startswith("embeddings.")}


def table_state(tables: list[ExportedTable]) -> dict[str, Tensor]:
    """The tensors of tables, by the names they have in the loaded module."""
    return {
        f"{PREFIX}{table.facts['name']}.{name}": tensor
        for table in tables
        for name, tensor in table.state.items()
    }


def write_folder(
    folder: Path,
    content: Mapping[str, Any],
    files: Mapping[str, Mapping[str, Tensor]],
    tables: list[ExportedTable],
    dense: Mapping[str, Tensor],
    data: Mapping[str, Any],
    save_encoder: Callable[[Path], None] | None = None,
) -> dict[str, Any]:
    """Write the files of an export, its configuration and its card; all of them or nothing.

    Args:
        folder: The folder; new or empty.
        content: The configuration, without format, version and files.
        files: Name → tensors of each file of tensors.
        tables: The tables, for the card.
        dense: The dense weights, for the card.
        data: Facts about the training data, for the card.
        save_encoder: Writes the folder of an encoder that has one of its own.

    Returns:
        A summary.
    """
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
            write_card(partial, config, tables, dense, data)
    except OSError as error:
        raise ExportError(
            f"could not write {folder}: {reason_of(error)}; nothing is left there"
        ) from error
    num_dense = sum(tensor.numel() for tensor in dense.values())
    return {
        "out": str(folder),
        "model": content["model"]["kind"],
        "num_parameters": num_dense + sum(table.num_parameters for table in tables),
        "bytes": written[WEIGHTS]["bytes"],
        "files": {name: facts["bytes"] for name, facts in written.items()},
    }
