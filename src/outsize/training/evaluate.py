"""Measuring the model of a run, or an exported one, on a labelled file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outsize.data import RetrievalData, TokenData
from outsize.errors import ConfigError
from outsize.export import load_exported
from outsize.export.file_reading import LabelledFile
from outsize.export.format import holds_export, read_config
from outsize.export.pairs import PairFiles, SeenItems
from outsize.export.predicting import RowScorer
from outsize.export.retrieval import ItemSearcher
from outsize.export.score_files import evaluate_file
from outsize.models import ClickModel, ClickModelConfig, RetrievalModel
from outsize.training.config import RunConfig
from outsize.training.evaluate_graph import evaluate_graph_run, measure_graph_file
from outsize.training.evaluate_pairs import cold_keys, evaluate_pairs, pair_facts, seen_in_run
from outsize.training.quantization_loss import measure_retrieval_model
from outsize.training.retrieval_evaluation import encode_items
from outsize.training.run_files import RunFile, recording
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import (
    beta_of,
    finite,
    load_click_model,
    load_retrieval_model,
    measured_on_splits,
)


@dataclass(frozen=True)
class _Loaded:
    """A model to evaluate.

    Attributes:
        model: The model; it can score raw rows, or search items.
        step: The step of its weights.
        note: A note on them.
        pairs: For a retrieval model, what is measured on files of pairs.
        seen: For the one of a run, the pairs that its test leaves out of rankings.
    """

    model: ClickModel | RetrievalModel
    step: int | None
    note: str = ""
    pairs: dict[str, Any] | None = None
    seen: SeenItems | None = None


def evaluate(
    model: str | Path,
    file: str | Path | None = None,
    step: int | None = None,
    *,
    exclude: Sequence[str | Path] = (),
    max_bad_rows: float | None = None,
    run_file: RunFile | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """The metrics of a trained model on a labelled file of raw values.

    Args:
        model: The folder of a run, whose data must still be there, or of an export.
        file: A CSV, TSV or Parquet file with the columns and the label of the training data; for a
            two-tower model, of pairs; for a graph model, of nodes with their classes, or of links.
            None for the run of a graph or a text model, which is then measured on its validation
            and test splits.
        step: For a run, take the checkpoint of this step instead of the best validation's.
        exclude: For a two-tower model or links, files of pairs whose items are left out of
            rankings; by default a run's training and validation pairs, and nothing for an export.
        max_bad_rows: The largest share of malformed rows that is skipped; by default as in
            training.
        run_file: For a retrieval model, also write the rankings to a TREC run file.
        quiet: Show no progress.

    Returns:
        "metrics", the "step" of the weights they are of, "num_rows" and "num_bad" of the file, and
        a "note" where the weights are not those of a run's best validation. Of a graph model also
        the "validation" metrics; "metrics" are those of the test.
    """
    run = RunFolder(Path(model))
    is_graph = _is_graph(run)
    if is_graph and run_file is not None:
        raise _no_rankings(model)
    if is_graph and run.holds_run() and file is None:
        if exclude:
            raise ConfigError(
                f"{run.path} is measured on the splits of its own data: leave --exclude out, or "
                "name a file"
            )
        return evaluate_graph_run(run, step)
    if file is None and run.holds_run() and getattr(run.config().data, "holds_texts", False):
        if exclude:
            raise ConfigError(f"{run.path} is measured on its own splits: leave --exclude out")
        return _evaluate_texts(run, step, run_file)
    if file is None:
        raise ConfigError(f"{model} is measured on a labelled file: name it after the folder")
    labelled = LabelledFile(Path(file), [Path(path) for path in exclude], max_bad_rows, quiet)
    if is_graph:
        _refuse_step(run, step)
        metrics, step, notes = measure_graph_file(run, labelled, step)
    else:
        metrics, step, notes = _measure(run, labelled, step, run_file)
    counts = {name: metrics.pop(name) for name in ("num_rows", "num_bad")}
    return {
        "model": str(model),
        "file": str(file),
        "step": step,
        "metrics": finite(metrics),
        **counts,
        "note": "; ".join(note for note in notes if note),
    }


def _evaluate_texts(run: RunFolder, step: int | None, run_file: RunFile | None) -> dict[str, Any]:
    """The metrics of a text model on the splits of its own data, as `evaluate` returns them."""
    config = run.config()
    model, data, chosen = load_retrieval_model(run, config, step)
    assert isinstance(data, TokenData)
    beta = beta_of(config, chosen.folder)
    ids = (side.ids.to_pylist() for side in (data.texts.queries, data.texts.items))
    with recording(run_file, *ids) as (record, depth):
        found = measure_retrieval_model(model, data, beta, config, record, depth)
    return measured_on_splits(run, chosen, found)


def _measure(
    run: RunFolder, file: LabelledFile, step: int | None, run_file: RunFile | None
) -> tuple[dict[str, Any], int | None, list[str]]:
    """As `measure_graph_file`, for the other models."""
    loaded = _load(run.path, step)
    if not isinstance(loaded.model, RetrievalModel):
        if file.exclude:
            raise ConfigError("--exclude is for two-tower models: leave it out")
        if run_file is not None:
            raise _no_rankings(run.path)
        metrics = evaluate_file(
            loaded.model, file.path, max_bad_rows=file.max_bad_rows, quiet=file.quiet
        )
        return metrics, loaded.step, [loaded.note]
    metrics = evaluate_pairs(loaded.model, file, loaded.pairs, loaded.seen, run_file)
    notes = [loaded.note, metrics.pop("note")]
    if not file.exclude and loaded.seen is None:
        notes.append("an export has no pairs that queries know already: name files of them with "
                     "--exclude to leave these out of rankings")  # fmt: skip
    return metrics, loaded.step, notes


def _no_rankings(model: str | Path) -> ConfigError:
    return ConfigError(
        f"{model} makes no rankings of a file's queries, and --run-file is for two-tower models: "
        "leave it out"
    )


def _is_graph(run: RunFolder) -> bool:
    if run.holds_run():
        return run.config().task == "graph"
    return holds_export(run.path) and read_config(run.path).get("task") == "graph"


def _refuse_step(run: RunFolder, step: int | None) -> None:
    if step is not None and not run.holds_run():
        raise ConfigError("--step chooses a checkpoint of a run, but an export has one set of "
                          "weights: leave it out")  # fmt: skip


def _load(folder: Path, step: int | None) -> _Loaded:
    """A model that can be measured on a file."""
    run = RunFolder(folder)
    if run.holds_run():
        config = run.config()
        load = _load_click if isinstance(config.model, ClickModelConfig) else _load_retrieval
        return load(run, config, step)
    if not holds_export(folder):
        raise ConfigError(
            f"{folder} holds neither a run nor an export: there is no config.toml and no "
            "config.json in it"
        )
    _refuse_step(run, step)
    found = read_config(folder)
    if "texts" in found:
        raise _of_texts(folder)
    return _Loaded(
        load_exported(folder), found.get("training", {}).get("step"), pairs=found.get("pairs")
    )


def _load_click(run: RunFolder, config: RunConfig, step: int | None) -> _Loaded:
    model, data, chosen = load_click_model(run, config, step)
    encoder = data.row_encoder()
    if encoder is None:
        raise _no_raw_values(run)
    model.predictor = RowScorer(lambda: encoder, config.train.eval_batch_size)
    return _Loaded(model, chosen.step, chosen.note)


def _load_retrieval(run: RunFolder, config: RunConfig, step: int | None) -> _Loaded:
    if config.data.holds_texts:  # type: ignore[union-attr]
        raise _of_texts(run.path)
    model, data, chosen = load_retrieval_model(run, config, step)
    facts = pair_facts(config, beta_of(config, chosen.folder))
    if facts is None or data.queries.encoder is None:
        raise _no_raw_values(run)
    model.searcher = _searcher(model, data, facts, config)
    return _Loaded(model, chosen.step, chosen.note, facts, seen_in_run(data))


def _searcher(
    model: RetrievalModel, data: RetrievalData, facts: dict[str, Any], config: RunConfig
) -> ItemSearcher:
    assert data.queries.encoder is not None
    return ItemSearcher(
        encode_items(model, data, config),
        data.items.names.to_pylist(),
        data.queries.encoder.only(model.query_features),
        PairFiles.from_facts(facts),
        cold_keys(data),
    )


def _of_texts(folder: Path) -> ConfigError:
    return ConfigError(
        f"{folder} holds a text model, which is measured on the splits of its own data: name the "
        "folder of its run, and no file; the card of its export has its metrics too"
    )


def _no_raw_values(run: RunFolder) -> ConfigError:
    return ConfigError(
        f"{run.path} was trained on data that has no raw values, so no file can be evaluated"
    )
