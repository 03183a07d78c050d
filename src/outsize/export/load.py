"""Loading an exported model without the training code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outsize.collection import EmbeddingCollection
from outsize.errors import ExportError, one_line
from outsize.export.format import (
    CONFIG,
    ENCODER,
    read_config,
    registered,
    require_whole_encoder,
    require_whole_files,
    unreadable,
)
from outsize.export.graph import build_graph_model, load_predictor
from outsize.export.predicting import RowScorer
from outsize.export.retrieval import ItemSearcher, build_retrieval
from outsize.export.tables import build_exported_table
from outsize.export.text_models import TextSearcher, load_tokenizer
from outsize.export.weights import load_weights, opened
from outsize.export.write import BATCH_SIZE
from outsize.models import CLICK_MODELS, ClickModel, GraphModel, RetrievalModel
from outsize.models.text import NoEmbeddings
from outsize.spec import FeatureSpec


def load_exported(folder: str | Path) -> Any:
    """Load an exported model to the CPU, after verifying the checksums of its files.

    Args:
        folder: A folder that `outsize export` wrote.

    Returns:
        A module in evaluation mode. A `ClickModel` takes `(dense, ids)` and returns the same logits
        as the trained model; `model.predict(rows)` takes raw values, if it was trained on files. A
        `RetrievalModel` has its items with it: `model.search(rows, k)`; a `TextModel` among them
        searches for texts, and has `encode_query_texts`, `encode_item_texts` and `item_text`. A
        `GraphModel` has its graph with it, memory-mapped: `model.predict(rows)`, and for links
        `model.search(rows, k)`.
    """
    folder = Path(folder)
    config = read_config(folder)
    require_whole_files(folder, config["files"])
    if "encoder" in config:
        require_whole_encoder(folder, config["encoder"])
    model: ClickModel | RetrievalModel | GraphModel
    try:
        model = _build(config, folder)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError) as error:
        if isinstance(error, ExportError):
            raise
        raise unreadable(folder, f"{CONFIG}: {type(error).__name__}: {one_line(error)}") from None
    if "encoder" not in config:
        load_weights(model, folder)
    _complete(model, config, folder)
    return model.eval()


def _complete(model: Any, config: Mapping[str, Any], folder: Path) -> None:
    """Give a model what it needs for raw values: a predictor, or items to search."""
    task = config.get("task", "click")
    if task == "graph":
        model.predictor = load_predictor(folder, config, model)
    elif task == "retrieval" and "texts" in config:
        load_tokenizer(model, *model_settings(config, folder), folder, config)
        model.searcher = TextSearcher.of_folder(folder, config)
    elif task == "retrieval":
        model.searcher = ItemSearcher.of_folder(folder, config)
    elif config.get("encoding") is not None:
        model.predictor = RowScorer.of_folder(folder, config, config.get("batch_size", BATCH_SIZE))


def build_embeddings(config: Mapping[str, Any], folder: Path) -> EmbeddingCollection:
    """The features of a model over its tables, which are on the meta device."""
    with opened(folder) as file:
        tables = {
            facts["name"]: build_exported_table(facts, file, folder) for facts in config["tables"]
        }
    features = [FeatureSpec(**feature) for feature in config["features"]]
    if not features and "encoder" in config:
        return NoEmbeddings()
    return EmbeddingCollection(features, tables)


def model_settings(
    config: Mapping[str, Any], folder: Path | None = None
) -> tuple[str, dict[str, Any]]:
    """The kind of a model, and the settings of its configuration.

    Args:
        config: The configuration of the export.
        folder: Its folder, in which the folder of an encoder is.
    """
    settings: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in config["model"].items()
    }
    if "encoder" in config and folder is not None:
        settings["path"] = str(folder / ENCODER)
    return settings.pop("kind"), settings


def _build(config: Mapping[str, Any], folder: Path) -> ClickModel | RetrievalModel | GraphModel:
    """Build the module that a configuration describes; its weights are loaded afterwards."""
    kind, settings = model_settings(config, folder)
    if config.get("task", "click") == "graph":
        return build_graph_model(kind, settings, config, build_embeddings(config, folder))
    if config.get("task", "click") == "retrieval":
        return build_retrieval(kind, settings, config, build_embeddings(config, folder))
    made = registered("model", kind, CLICK_MODELS)(**settings)
    return made.build(config["num_dense"], build_embeddings(config, folder), seed=0)
