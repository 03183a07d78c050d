"""Measuring graph models: a run on the splits of its data, any of them on a labelled file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outsize.data.click_data import SPLITS
from outsize.errors import ConfigError
from outsize.export import load_exported
from outsize.export.format import read_config
from outsize.export.graph_predictors import LinkPredictor, NodePredictor
from outsize.export.labelled_nodes import evaluate_nodes
from outsize.export.pairs import SeenItems
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


def evaluate_graph_file(
    folder: Path,
    file: Path,
    step: int | None = None,
    *,
    exclude: Sequence[Path] = (),
    max_bad_rows: float | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """The metrics of a graph model on a file of labelled nodes, or of links.

    Arguments and result as of `outsize.training.evaluate.evaluate`.
    """
    run, seen, note = RunFolder(folder), None, ""
    predictor: Any
    if run.holds_run():
        loaded = load_graph_run(run, step)
        predictor, ranking = loaded.predictor(), loaded.purpose().ranking
        step, note = loaded.chosen.step, loaded.chosen.note
        seen = known_links(loaded.task.data) if isinstance(loaded.task, LinkTask) else None
    else:
        config = read_config(folder)
        predictor, ranking = load_exported(folder).predictor, config["graph"].get("ranking")
        step = config.get("training", {}).get("step")
    metrics = _measure(predictor, file, ranking, seen, exclude, max_bad_rows, quiet)
    notes = [note, metrics.pop("note")]
    if isinstance(predictor, LinkPredictor) and not exclude and seen is None:
        notes.append("an export has no links that sources know already: name files of them with "
                     "--exclude to leave these out of rankings")  # fmt: skip
    counts = {name: metrics.pop(name) for name in ("num_rows", "num_bad")}
    return {
        "model": str(folder),
        "file": str(file),
        "step": step,
        "metrics": finite(metrics),
        **counts,
        "note": "; ".join(note for note in notes if note),
    }


def _measure(
    predictor: NodePredictor | LinkPredictor,
    file: Path,
    ranking: Any,
    seen: SeenItems | None,
    exclude: Sequence[Path],
    max_bad_rows: float | None,
    quiet: bool,
) -> dict[str, Any]:
    if isinstance(predictor, LinkPredictor):
        return evaluate_links(
            predictor, file, ranking, seen=seen, exclude=exclude, max_bad_rows=max_bad_rows,
            quiet=quiet,
        )  # fmt: skip
    if exclude:
        raise ConfigError("--exclude is for links and two-tower models: leave it out")
    return evaluate_nodes(predictor, file, max_bad_rows=max_bad_rows, quiet=quiet)
