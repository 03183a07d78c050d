"""The weights of a finished run: which checkpoint they come from, and what was measured on them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outsize.checkpoint import list_checkpoints, load_checkpoint, read_plain_state, step_of
from outsize.data import ClickData, RetrievalData
from outsize.errors import CheckpointError, ConfigError
from outsize.json_files import Each, OneOf, SchemaError, Whole, check
from outsize.models import ClickModel, RetrievalModel
from outsize.stores.row_files import load_rows
from outsize.suggestions import few
from outsize.training.build import (
    build_click_data,
    build_model,
    build_retrieval_data,
    build_retrieval_model,
)
from outsize.training.config import RunConfig
from outsize.training.loop_state import dense_state, load_dense_state
from outsize.training.metric_names import Metrics, metrics_of
from outsize.training.run_folder import RunFolder
from outsize.training.saved_state import require_state, require_weights
from outsize.training.tasks import Task

_METRICS = Each(OneOf(None, float))
_LOOP = {"step": Whole(), "best": _METRICS, "test": _METRICS}


@dataclass(frozen=True)
class ChosenCheckpoint:
    """A checkpoint of a run, chosen for its weights.

    Attributes:
        folder: The checkpoint.
        step: Its step.
        is_best: Whether it holds the weights of the run's best validation.
        metrics: Split → metrics that the run measured on these weights; none where it did not.
        note: Why these are not the weights of the best validation, in words; empty where they are,
            or where the step was asked for.
    """

    folder: Path
    step: int
    is_best: bool
    metrics: dict[str, Metrics]
    note: str = ""

    def facts(self) -> dict[str, Any]:
        """What an export says of the training of these weights."""
        return {"step": self.step, "is_best": self.is_best, "metrics": self.metrics}


def open_run(run: str | Path) -> RunFolder:
    """The folder of a run; raises a `ConfigError` if there is none."""
    folder = RunFolder(Path(run))
    if not folder.holds_run():
        raise ConfigError(
            f"{folder.path} holds no run: there is no config.toml in it; "
            "name a folder that outsize train has written"
        )
    return folder


def choose_checkpoint(folder: RunFolder, step: int | None = None) -> ChosenCheckpoint:
    """The checkpoint of the best validation, or of a step.

    A run of an older version may have kept no checkpoint of its best validation: then it is the
    newest one, with a note that says so.

    Args:
        folder: The run.
        step: The step; by default that of the best validation.
    """
    checkpoints = list_checkpoints(folder.checkpoints)
    if not checkpoints:
        raise CheckpointError(
            f"{folder.path} holds no checkpoint yet: train on with --resume until one is written"
        )
    newest = checkpoints[-1]
    number = _loop_of(newest)["best"].get("step")
    best = _best_of(folder, [path for path in checkpoints if step_of(path) == number])
    if step is not None:
        same = [path for path in checkpoints if step_of(path) == step]
        if not same:
            steps = dict.fromkeys(f"{step_of(path):,}" for path in checkpoints)
            raise ConfigError(
                f"{folder.path} has no checkpoint of step {step:,}: it keeps those of {few(steps)}"
            )
        chosen = best if best in same else same[-1]
        return _chosen(folder, chosen, chosen == best)
    if best is not None:
        return _chosen(folder, best, is_best=True)
    note = (
        "nothing was validated yet"
        if number is None
        else f"no checkpoint of the best validation (step {number:,}) was kept"
    )
    return _chosen(folder, newest, False, f"{note}: these are the weights of the newest")


def _loop_of(checkpoint: Path) -> dict[str, Any]:
    loop: Any = read_plain_state(checkpoint).get("loop")
    try:
        check(loop, _LOOP)
        if loop["best"]:
            check(loop["best"], {"step": Whole()}, "best")
    except SchemaError as error:
        raise CheckpointError(
            f"checkpoint {checkpoint} is damaged: state.json: loop: {error}"
        ) from None
    found: dict[str, Any] = loop
    return found


def _best_of(folder: RunFolder, checkpoints: Sequence[Path]) -> Path | None:
    """The checkpoint with the weights that were validated, of those of the best step.

    A step may be saved before its validation, before its tables are reclustered, and after that.
    """
    for checkpoint in checkpoints:
        loop = _loop_of(checkpoint)
        if loop["best"].get("step") != loop["step"]:
            continue
        was_reclustered = loop.get("unfinished", "") not in ("keep", "recluster") and any(
            line["split"] == "recluster" and line["step"] == loop["step"]
            for line in folder.metrics()
        )
        if not was_reclustered:
            return checkpoint
    return None


def _chosen(folder: RunFolder, checkpoint: Path, is_best: bool, note: str = "") -> ChosenCheckpoint:
    step = step_of(checkpoint)
    if is_best:
        loop = _loop_of(checkpoint)
        validation = {name: value for name, value in loop["best"].items() if name != "step"}
        metrics = {"validation": finite(validation), "test": finite(loop["test"])}
        return ChosenCheckpoint(checkpoint, step, True, metrics, note)
    lines = [line for line in folder.metrics() if line["step"] == step]
    metrics = {}
    if not any(line["split"] == "recluster" for line in lines):
        for line in lines:
            if line["split"] in ("validation", "test"):
                metrics[line["split"]] = finite(metrics_of(line))
    return ChosenCheckpoint(checkpoint, step, False, metrics, note)


def finite(metrics: Mapping[str, float | None]) -> Metrics:
    """Metrics as JSON values: non-finite ones are null."""
    return {n: v if v is not None and math.isfinite(v) else None for n, v in metrics.items()}


def measured_on_splits(
    run: RunFolder, chosen: ChosenCheckpoint, found: Mapping[str, Metrics]
) -> dict[str, Any]:
    """What `outsize evaluate` says of a run that is measured on the splits of its own data."""
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


def load_click_model(
    folder: RunFolder, config: RunConfig, step: int | None = None
) -> tuple[ClickModel, ClickData, ChosenCheckpoint]:
    """The click model of a run, its data, and the checkpoint that its weights are from."""
    chosen = choose_checkpoint(folder, step)
    data = build_click_data(config)
    model = build_model(config, data)
    load_weights(folder, config, model, chosen.folder)
    return model, data, chosen


def load_retrieval_model(
    folder: RunFolder, config: RunConfig, step: int | None = None
) -> tuple[RetrievalModel, RetrievalData, ChosenCheckpoint]:
    """The retrieval model of a run in evaluation mode, its data, and the checkpoint it is from."""
    chosen = choose_checkpoint(folder, step)
    data = build_retrieval_data(config)
    model = build_retrieval_model(config, data)
    if not model.query_features or not model.item_features:
        raise ConfigError(
            f"{folder.path} holds a {type(model).__name__}, which does not say the features of its "
            "queries and items: set query_features and item_features in the model"
        )
    load_weights(folder, config, model.eval(), chosen.folder)
    return model, data, chosen


def load_weights(
    folder: RunFolder, config: RunConfig, model: ClickModel | RetrievalModel, checkpoint: Path
) -> None:
    """Load the weights and rows of a checkpoint into a model that was built for its run."""
    store = model.embeddings.store
    config.embeddings.build_row_optimizer(store)  # its state is saved with the rows
    state = load_checkpoint(checkpoint)
    judge = Task.judge if config.retrieval is None else config.retrieval.judge
    try:
        require_state(state, judge, is_older=True)
        weights = state.pop("model")
        if isinstance(model, RetrievalModel):  # saved together with what else is trained
            own = "model."
            weights = {n.removeprefix(own): w for n, w in weights.items() if n.startswith(own)}
        require_weights(weights, dense_state(model, store))
        load_dense_state(model, store, weights)
        new = {} if store is None else load_rows(store, checkpoint)
    except CheckpointError:
        raise
    except (SchemaError, RuntimeError) as error:
        raise _does_not_fit(folder, checkpoint, f" ({' '.join(str(error).split())})") from None
    if any(new.values()):
        raise _does_not_fit(folder, checkpoint)


def beta_of(config: RunConfig, checkpoint: Path) -> float:
    """The inverse temperature of a retrieval run: as configured, or as learned by a checkpoint."""
    assert config.negatives is not None
    weights = load_checkpoint(checkpoint)["model"]
    learned = [weight for name, weight in weights.items() if name.startswith("negatives.")]
    if config.negatives.learn_beta and len(learned) == 1 and learned[0].numel() == 1:
        return float(learned[0].float().exp())
    return float(config.negatives.beta)


def _does_not_fit(folder: RunFolder, checkpoint: Path, fact: str = "") -> CheckpointError:
    return CheckpointError(
        f"checkpoint {checkpoint} does not fit {folder.config_file}{fact}: "
        "were the file or the data changed after the run began?"
    )
