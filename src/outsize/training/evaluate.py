"""Measuring the model of a run, or an exported one, on a labelled file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outsize.errors import ConfigError
from outsize.export import load_exported
from outsize.export.format import holds_export, read_config
from outsize.export.predicting import RowScorer
from outsize.export.score_files import evaluate_file
from outsize.models import ClickModel, ClickModelConfig
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import finite, load_click_model


def evaluate(
    model: str | Path,
    file: str | Path,
    step: int | None = None,
    *,
    max_bad_rows: float | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """The metrics of a trained model on a labelled file of raw values.

    Args:
        model: The folder of a run, whose data must still be there, or of an export.
        file: A CSV, TSV or Parquet file with the columns and the label of the training data.
        step: For a run, take the checkpoint of this step instead of the best validation's.
        max_bad_rows: The largest share of malformed rows that is skipped; by default as in
            training.
        quiet: Show no progress.

    Returns:
        "metrics", the "step" of the weights they are of, "num_rows" and "num_bad" of the file, and
        a "note" where the weights are not those of a run's best validation.
    """
    loaded, found_step, note = _load(Path(model), step)
    metrics = evaluate_file(loaded, file, max_bad_rows=max_bad_rows, quiet=quiet)
    counts = {name: metrics.pop(name) for name in ("num_rows", "num_bad")}
    return {
        "model": str(model),
        "file": str(file),
        "step": found_step,
        "metrics": finite(metrics),
        **counts,
        "note": note,
    }


def _load(folder: Path, step: int | None) -> tuple[ClickModel, int | None, str]:
    """A model that can score raw rows, the step of its weights, and a note on it."""
    run = RunFolder(folder)
    if run.holds_run():
        config = run.config()
        if not isinstance(config.model, ClickModelConfig):
            raise ConfigError(f"{folder} holds a {config.task} model: only click models are "
                              "evaluated on files")  # fmt: skip
        found = load_click_model(run, step)
        encoder = found.data.row_encoder()
        if encoder is None:
            raise ConfigError(f"{folder} was trained on data that has no raw values, so no file "
                              "can be evaluated")  # fmt: skip
        found.model.predictor = RowScorer(lambda: encoder, config.train.eval_batch_size)
        return found.model, found.chosen.step, found.chosen.note
    if not holds_export(folder):
        raise ConfigError(
            f"{folder} holds neither a run nor an export: there is no config.toml and no "
            "config.json in it"
        )
    if step is not None:
        raise ConfigError("--step chooses a checkpoint of a run, but an export has one set of "
                          "weights: leave it out")  # fmt: skip
    found_config = read_config(folder)
    if found_config.get("task", "click") != "click":
        raise ConfigError(f"{folder} holds a {found_config['task']} model: only click models are "
                          "evaluated on files")  # fmt: skip
    return load_exported(folder), found_config.get("training", {}).get("step"), ""
