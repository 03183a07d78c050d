"""Measuring the model of a graph run on the splits of its data."""

from __future__ import annotations

from typing import Any

from outsize.data.click_data import Split
from outsize.training.export_graph import load_graph_run
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import finite


def evaluate_graph_run(run: RunFolder, step: int | None = None) -> dict[str, Any]:
    """The validation and test metrics of a graph model.

    Args:
        run: The run, whose data must still be there.
        step: Take the checkpoint of this step instead of the best validation's.

    Returns:
        As `outsize.training.evaluate.evaluate`.
    """
    loaded = load_graph_run(run, step)
    task, chosen = loaded.task, loaded.chosen
    splits: tuple[Split, ...] = ("validation", "test")
    found = {split: finite(task.evaluate(split)) for split in splits}
    return {
        "model": str(run.path),
        "file": None,
        "step": chosen.step,
        "metrics": found["test"],
        "validation": found["validation"],
        "num_rows": None,
        "num_bad": 0,
        "note": chosen.note,
    }
