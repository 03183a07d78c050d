"""Measuring the model of a graph run on the splits of its data."""

from __future__ import annotations

from typing import Any

from outsize.checkpoint import load_checkpoint
from outsize.data.click_data import Split
from outsize.errors import ConfigError
from outsize.stores.row_files import load_rows
from outsize.training.loop_state import dense_state, load_dense_state
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import choose_checkpoint, finite
from outsize.training.saved_state import fitting, require_state, require_weights
from outsize.training.tasks import TASKS


def evaluate_graph_run(run: RunFolder, step: int | None = None) -> dict[str, Any]:
    """The validation and test metrics of a graph model.

    Args:
        run: The run, whose data must still be there.
        step: Take the checkpoint of this step instead of the best validation's.

    Returns:
        As `outsize.training.evaluate.evaluate`.
    """
    config, chosen = run.config(), choose_checkpoint(run, step)
    task = TASKS[config.task](config)
    store = task.embeddings.store
    state = load_checkpoint(chosen.folder)
    with fitting(chosen.folder):
        require_state(state, task.judge, is_older=True)
        weights = state["model"]
        require_weights(weights, dense_state(task.trained, store))
    if state["data"] != task.fingerprint:
        raise ConfigError(
            f"the data has changed since {run.path} was trained: bring the old data back"
        )
    load_dense_state(task.trained, store, weights)
    if store is not None:
        load_rows(store, chosen.folder)
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
