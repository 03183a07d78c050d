"""Quantizing an exported model, without its run and its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outsize.errors import ConfigError
from outsize.export.card import CARD
from outsize.export.format import read_config, require_free
from outsize.export.load import load_exported, model_settings
from outsize.export.predicting import RowScorer
from outsize.export.quantization import Quantization, quantization_facts, quantize_click_model
from outsize.export.write import BATCH_SIZE, write_exported
from outsize.json_files import Each, SchemaError, read_json
from outsize.models import CLICK_MODELS, ClickModel, GraphModel


def quantize_folder(
    folder: str | Path, out: str | Path, quantization: Quantization
) -> dict[str, Any]:
    """Write an exported click model with quantized tables to another folder.

    An export has no data to measure the loss on, so the new card has no metrics; a note says so.

    Args:
        folder: The export; it is only read.
        out: The folder to write; new, or empty.
        quantization: How the tables are quantized.

    Returns:
        As `export_run` does.
    """
    folder, out = Path(folder), Path(out)
    require_free(out)
    config = read_config(folder)
    model = load_exported(folder)
    if isinstance(model, GraphModel):
        raise ConfigError(
            f"{folder} holds a graph model, which cannot be quantized yet: train it with "
            "compressed tables (embeddings.kind = 'tables')"
        )
    if not isinstance(model, ClickModel):
        raise ConfigError(
            f"{folder} holds a {config['task']} model, whose items have to be encoded again: "
            "export its run with --quantize"
        )
    kind, settings = model_settings(config)
    model_config = CLICK_MODELS[kind](**settings)
    quantized, changes = quantize_click_model(model, model_config, quantization)
    training = dict(config.get("training", {}))
    facts = quantization_facts(quantization, changes, training.get("metrics", {}))
    training |= {"metrics": {}, "quantization": facts}
    scorer = model.predictor
    written = write_exported(
        out,
        quantized,
        model_config,
        training,
        encoder=scorer.encoder if isinstance(scorer, RowScorer) else None,
        batch_size=config.get("batch_size", BATCH_SIZE),
        data=_data_facts(folder),
    )
    note = (
        "what quantization costs was not measured, because an export has no data: "
        f"`outsize evaluate {out} FILE` measures it"
    )
    step = {"step": training.get("step"), "is_best": bool(training.get("is_best"))}
    return {**written, **step, "metrics": {}, "quantization": facts, "note": note}


def _data_facts(folder: Path) -> dict[str, Any]:
    """What the card says of the training data, if there is a card."""
    try:
        facts: dict[str, Any] = read_json(folder / CARD, {"data": Each(object)})["data"]
    except (OSError, SchemaError):
        return {}
    return facts
