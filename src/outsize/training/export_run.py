"""Export the model of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outsize.data import DATA, Texts
from outsize.data.click_data import SPLITS
from outsize.errors import ConfigError
from outsize.export import require_free, write_exported
from outsize.export.format import holds_export
from outsize.export.quantization import (
    Quantization,
    quantization_facts,
    quantize_click_model,
    quantize_retrieval_model,
)
from outsize.export.quantize_folder import quantize_folder
from outsize.export.retrieval import write_exported_retrieval
from outsize.export.text_models import ItemTexts, write_exported_texts
from outsize.models import (
    MODELS,
    ClickModelConfig,
    RetrievalModelConfig,
)
from outsize.registries import name_of
from outsize.suggestions import few
from outsize.training.config import RunConfig
from outsize.training.evaluate_pairs import cold_keys, pair_facts
from outsize.training.export_graph import export_graph
from outsize.training.quantization_loss import (
    measure_click_models,
    measure_retrieval_model,
)
from outsize.training.retrieval_evaluation import encode_items
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import (
    beta_of,
    load_click_model,
    load_retrieval_model,
    open_run,
)


def export_run(
    run: str | Path,
    out: str | Path,
    step: int | None = None,
    *,
    quantize: str | Quantization | None = None,
    quiet: bool = True,
) -> dict[str, Any]:
    """Write the model of a run's best checkpoint for `outsize.load_exported`.

    With `quantize`, its tables are quantized, and both models are measured on the validation and
    the test split; the card has the metrics of the quantized one.

    Args:
        run: The folder of the run; it is only read, and may still be training. With `quantize`
            also an export of a click model, on which nothing can be measured: a note says so.
        out: The folder to write; new, or empty.
        step: Take the checkpoint of this step instead of the best validation's.
        quantize: "int8" for rows of 8-bit integers, "pq" for product quantization, or a
            `Quantization` with settings.
        quiet: Show no progress.

    Returns:
        What was written: folder, kind of the model, step, the metrics measured on these weights,
        parameters and bytes; a note where they are not those of the best validation; and with
        `quantize`, under "quantization", bytes and metrics before, and what became of each table.
    """
    how = Quantization(quantize) if isinstance(quantize, str) else quantize
    if holds_export(Path(run)) and not RunFolder(Path(run)).holds_run():
        if how is None or step is not None:
            raise ConfigError(
                f"{run} holds an export, not a run: it can be quantized (--quantize), but has no "
                "steps to choose from"
            )
        return quantize_folder(run, out, how)
    folder, out = open_run(run), Path(out)
    require_free(out)
    config = folder.config()
    if config.task == "graph":
        if how is not None:
            raise ConfigError(
                f"{folder.path} holds a graph model, which cannot be quantized yet: train it with "
                "compressed tables (embeddings.kind = 'tables')"
            )
        return export_graph(folder, out, step, _data_facts)
    export = _export_click if isinstance(config.model, ClickModelConfig) else _export_retrieval
    return export(folder, config, out, step, how, quiet)


def _export_click(
    folder: RunFolder,
    config: RunConfig,
    out: Path,
    step: int | None,
    how: Quantization | None,
    quiet: bool,
) -> dict[str, Any]:
    assert isinstance(config.model, ClickModelConfig)
    model, data, chosen = load_click_model(folder, config, step)
    training = chosen.facts()
    if how is not None:
        quantized, changes = quantize_click_model(model, config.model, how)
        before, after = measure_click_models(
            [model, quantized], data, config.train.eval_batch_size, quiet
        )
        facts = quantization_facts(how, changes, before)
        model, training = quantized, {**training, "metrics": after, "quantization": facts}
    sizes = {f"{split}_examples": data.num_examples(split) for split in SPLITS}
    written = write_exported(
        out,
        model,
        config.model,
        training,
        encoder=data.row_encoder(),
        batch_size=config.train.eval_batch_size,
        data=_data_facts(config, sizes, data.fingerprint),
    )
    return {**written, **training, "note": chosen.note}


def _export_retrieval(
    folder: RunFolder,
    config: RunConfig,
    out: Path,
    step: int | None,
    how: Quantization | None,
    quiet: bool,
) -> dict[str, Any]:
    assert isinstance(config.model, RetrievalModelConfig)
    assert config.retrieval is not None
    model, data, chosen = load_retrieval_model(folder, config, step)
    training, beta = chosen.facts(), beta_of(config, chosen.folder)
    if how is not None and not model.embeddings.features:
        raise ConfigError(
            f"{folder.path} holds a {name_of(MODELS, config.model)} model, which has no tables to "
            "quantize: leave --quantize out"
        )
    if how is not None:
        quantized, changes = quantize_retrieval_model(model, config.model, how)
        before, after = (
            measure_retrieval_model(one, data, beta, config) for one in (model, quantized)
        )
        facts = quantization_facts(how, changes, before)
        model, training = quantized, {**training, "metrics": after, "quantization": facts}
    vectors = encode_items(model, data, config)
    names = data.items.names
    sizes = {f"{split}_pairs": data.num_pairs(split) for split in SPLITS}
    sizes |= {"queries": data.queries.num_rows, "items": data.items.num_rows}
    facts = _data_facts(config, sizes, data.fingerprint)
    if data.item_texts is not None:
        items = _item_texts(data.item_texts)
        written = write_exported_texts(
            out, model, config.model, vectors, items, training, data=facts
        )
        return {**written, **training, "note": chosen.note}
    written = write_exported_retrieval(
        out,
        model,
        config.model,
        vectors,
        [str(row) for row in range(len(vectors))] if names is None else names.to_pylist(),
        training,
        encoder=data.queries.encoder,
        data=facts,
        pairs=pair_facts(config, beta),
        cold=cold_keys(data),
    )
    return {**written, **training, "note": chosen.note}


def _item_texts(items: Texts) -> ItemTexts:
    facts = {name: values.to_pylist() for name, values in items.facts.items()}
    return ItemTexts(items.ids.to_pylist(), items.texts.to_pylist(), facts)


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
