"""Measuring graph models: a run on the splits of its data, any of them on a labelled file."""

from __future__ import annotations

from typing import Any

from outsize.data.click_data import SPLITS
from outsize.errors import ConfigError
from outsize.export import load_exported
from outsize.export.file_reading import LabelledFile
from outsize.export.format import read_config
from outsize.export.graph_predictors import LinkPredictor
from outsize.export.labelled_nodes import evaluate_nodes
from outsize.training.evaluate_links import evaluate_links, known_links
from outsize.training.export_graph import load_graph_run
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import finite, measured_on_splits
from outsize.training.tasks.links import LinkTask


def evaluate_graph_run(run: RunFolder, step: int | None = None) -> dict[str, Any]:
    """The validation and test metrics of a graph model.

    Args:
        run: The run, whose data must still be there.
        step: Take the checkpoint of this step instead of the best validation's.

    Returns:
        As `outsize.training.evaluate.evaluate`.
    """
    loaded = load_graph_run(run, step)
    found = {str(split): finite(loaded.task.evaluate(split)) for split in SPLITS[1:]}
    return measured_on_splits(run, loaded.chosen, found)


def measure_graph_file(
    run: RunFolder, file: LabelledFile, step: int | None = None
) -> tuple[dict[str, Any], int | None, list[str]]:
    """The metrics of a graph model on a file of labelled nodes, or of links.

    Args:
        run: The folder of a run, or of an export.
        file: The file.
        step: For a run, take the checkpoint of this step.

    Returns:
        The metrics with the numbers of rows, the step of the weights, and notes on them.
    """
    seen, note = None, ""
    predictor: Any
    if run.holds_run():
        loaded = load_graph_run(run, step)
        predictor, ranking = loaded.predictor(), loaded.purpose().ranking
        step, note = loaded.chosen.step, loaded.chosen.note
        seen = known_links(loaded.task.data) if isinstance(loaded.task, LinkTask) else None
    else:
        config = read_config(run.path)
        predictor, ranking = load_exported(run.path).predictor, config["graph"].get("ranking")
        step = config.get("training", {}).get("step")
    if not isinstance(predictor, LinkPredictor):
        if file.exclude:
            raise ConfigError("--exclude is for links and two-tower models: leave it out")
        metrics = evaluate_nodes(predictor, file)
        return metrics, step, [note, metrics.pop("note")]
    metrics = evaluate_links(predictor, file, ranking, seen)
    notes = [note, metrics.pop("note")]
    if not file.exclude and seen is None:
        notes.append("an export has no links that sources know already: name files of them with "
                     "--exclude to leave these out of rankings")  # fmt: skip
    return metrics, step, notes
