"""Export the model of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from outsize.data import DATA
from outsize.data.click_data import SPLITS
from outsize.errors import ConfigError
from outsize.export import require_free, write_exported
from outsize.export.retrieval import write_exported_retrieval
from outsize.models import ClickModelConfig, RetrievalModelConfig, TwoTower
from outsize.registries import name_of
from outsize.suggestions import few
from outsize.training.build import build_retrieval_data, build_retrieval_model
from outsize.training.config import RunConfig
from outsize.training.retrieval_evaluation import encode_corpus
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import (
    ChosenCheckpoint,
    choose_checkpoint,
    load_click_model,
    load_weights,
    open_run,
)

_ITEMS_PER_CHUNK = 8192  # as in evaluation


def export_run(run: str | Path, out: str | Path, step: int | None = None) -> dict[str, Any]:
    """Write the model of a run's best checkpoint for `outsize.load_exported`.

    Args:
        run: The folder of the run; it is only read, and may still be training.
        out: The folder to write; new, or empty.
        step: Take the checkpoint of this step instead of the best validation's.

    Returns:
        What was written: folder, kind of the model, step, the metrics measured on these weights,
        parameters and bytes; and a note where they are not those of the best validation.
    """
    folder, out = open_run(run), Path(out)
    require_free(out)
    config = folder.config()
    if isinstance(config.model, ClickModelConfig):
        written, chosen = _export_click(folder, config, out, step)
    else:
        written, chosen = _export_retrieval(folder, config, out, step)
    return {**written, **_training(chosen), "note": chosen.note}


def _training(chosen: ChosenCheckpoint) -> dict[str, Any]:
    return {"step": chosen.step, "is_best": chosen.is_best, "metrics": chosen.metrics}


def _export_click(
    folder: RunFolder, config: RunConfig, out: Path, step: int | None
) -> tuple[dict[str, Any], ChosenCheckpoint]:
    assert isinstance(config.model, ClickModelConfig)
    loaded = load_click_model(folder, step)
    sizes = {f"{split}_examples": loaded.data.num_examples(split) for split in SPLITS}
    written = write_exported(
        out,
        loaded.model,
        config.model,
        _training(loaded.chosen),
        encoder=loaded.data.row_encoder(),
        batch_size=config.train.eval_batch_size,
        data=_data_facts(config, sizes, loaded.data.fingerprint),
    )
    return written, loaded.chosen


def _export_retrieval(
    folder: RunFolder, config: RunConfig, out: Path, step: int | None
) -> tuple[dict[str, Any], ChosenCheckpoint]:
    assert isinstance(config.model, RetrievalModelConfig)
    chosen = choose_checkpoint(folder, step)
    data = build_retrieval_data(config)
    model = build_retrieval_model(config, data)
    if not isinstance(model, TwoTower):
        raise ConfigError(
            f"{folder.path} holds a {type(model).__name__}, but of retrieval models only two "
            "towers can be exported"
        )
    load_weights(folder, config, model.eval(), chosen.folder)
    vectors = encode_corpus(
        lambda rows: model.encode_items(data.items.take(rows)),
        data.items.num_rows,
        _ITEMS_PER_CHUNK,
        torch.device("cpu"),
    )
    names = data.items.names
    sizes = {f"{split}_pairs": data.num_pairs(split) for split in SPLITS}
    sizes |= {"queries": data.queries.num_rows, "items": data.items.num_rows}
    written = write_exported_retrieval(
        out,
        model,
        config.model,
        vectors,
        [str(row) for row in range(len(vectors))] if names is None else names.to_pylist(),
        _training(chosen),
        encoder=data.queries.encoder,
        data=_data_facts(config, sizes, data.fingerprint),
    )
    return written, chosen


def _data_facts(config: RunConfig, sizes: Mapping[str, int], fingerprint: str) -> dict[str, Any]:
    """What the card says of the training data; of paths, the names only."""
    paths = getattr(config.data, "path", ())
    names = [Path(path).name for path in ((paths,) if isinstance(paths, str) else paths)]
    label = getattr(config.data, "label", "")
    return {
        "data": name_of(DATA, config.data),
        **({"data_files": few(names)} if names else {}),
        **({"label": label} if label else {}),
        **sizes,
        "data_fingerprint": fingerprint,
    }
