"""Export the model of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outsize.checkpoint import list_checkpoints, load_checkpoint
from outsize.errors import CheckpointError, ConfigError
from outsize.export import require_free, write_exported
from outsize.json_files import SchemaError
from outsize.models import ClickModelConfig
from outsize.stores.row_files import load_rows
from outsize.training.build import build_click_data, build_model, build_row_optimizer
from outsize.training.loop_state import dense_state, load_dense_state
from outsize.training.run_folder import RunFolder
from outsize.training.saved_state import require_state, require_weights
from outsize.training.tasks import Task


def export_run(run: str | Path, out: str | Path) -> dict[str, Any]:
    """Write the model of a run's newest checkpoint for `outsize.load_exported`.

    Args:
        run: The folder of the run; it is only read, and may still be training.
        out: The folder to write; new, or empty.

    Returns:
        What was written: folder, kind of the model, step, parameters and bytes.
    """
    folder, out = RunFolder(Path(run)), Path(out)
    if not folder.holds_run():
        raise ConfigError(f"{folder.path} holds no run: there is no config.toml in it")
    require_free(out)
    config = folder.config()
    if not isinstance(config.model, ClickModelConfig):
        raise ConfigError(
            f"{folder.path} holds a run of a {config.task} model, but only click models can be "
            "exported: take the model from `outsize.train(…).model`"
        )
    checkpoints = list_checkpoints(folder.checkpoints)
    if not checkpoints:
        raise CheckpointError(
            f"{folder.path} holds no checkpoint yet: train on with --resume until one is written"
        )
    state = load_checkpoint(checkpoints[-1])
    model = build_model(config, build_click_data(config))
    store = model.embeddings.store
    build_row_optimizer(config, store)  # its state is saved with the rows
    try:
        require_state(state, Task.judge, is_older=True)
        require_weights(state["model"], dense_state(model, store))
        load_dense_state(model, store, state.pop("model"))
        new = {} if store is None else load_rows(store, checkpoints[-1])
    except CheckpointError:
        raise
    except (SchemaError, RuntimeError) as error:
        raise _does_not_fit(folder, checkpoints[-1], f" ({' '.join(str(error).split())})") from None
    if any(new.values()):
        raise _does_not_fit(folder, checkpoints[-1])
    loop = state["loop"]
    training = {
        "step": loop["step"],
        "best_validation": _finite(loop["best"]),
        "test": _finite(loop["test"]),
    }
    written = write_exported(out, model, config.model, training)
    return {**written, "step": loop["step"]}


def _does_not_fit(folder: RunFolder, checkpoint: Path, fact: str = "") -> CheckpointError:
    return CheckpointError(
        f"checkpoint {checkpoint} does not fit {folder.config_file}{fact}: "
        "were the file or the data changed after the run began?"
    )


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics as JSON values: non-finite ones are null."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}
