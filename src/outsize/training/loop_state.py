"""The state of a loop and its optimizers, as trees of plain values and tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.contracts import RowStore
from outsize.errors import ConfigError
from outsize.ranks.collectives import world_size
from outsize.training.metric_names import Metrics
from outsize.training.random_state import load_random_state, random_state
from outsize.training.saved_state import IMPLEMENTATIONS
from outsize.training.tasks import Task


@dataclass
class LoopState:
    """The progress of a run.

    Attributes:
        step: Steps taken.
        epoch: The current epoch, from 0.
        batch: Batches of it already used.
        loss_sum: Sum of training losses since the last log line.
        loss_count: How many those are.
        row_counts: What rows have cost since then, over all ranks, where that is counted.
        sums: What the task logs as means over steps: sums since then over all ranks, and counts.
        epoch_best: Lowest badness of a validation in the current epoch.
        previous_best: Lowest badness in the epoch before.
        best: Metrics of the best validation so far, with its step.
        test: Test metrics at that step.
        stopped: Why the run ended; empty while it runs.
        unfinished: The stage after the last step in which the run was stopped; empty if all were
            completed.
        rejected_probe: The step of a probe that was not used, after which none is made; or 0.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    row_counts: dict[str, Any] = field(default_factory=dict)
    sums: dict[str, Any] = field(default_factory=dict)
    epoch_best: float = math.inf
    previous_best: float = math.inf
    best: Metrics = field(default_factory=dict)
    test: Metrics = field(default_factory=dict)
    stopped: str = ""
    unfinished: str = ""
    rejected_probe: int = 0

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LoopState:
        """Read back what `asdict` wrote.

        What an older version did not write is as at first, and a NaN, which it wrote for a metric
        that does not exist, is none.
        """
        state = cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})
        state.best, state.test = _without_nan(state.best), _without_nan(state.test)
        return state

    def run_stages(self, stages: Mapping[str, Callable[[], None]]) -> None:
        """Run the stages that follow a step, starting with the one that was stopped, if any."""
        names = list(stages)
        for name in names[names.index(self.unfinished) if self.unfinished else 0 :]:
            self.unfinished = name
            stages[name]()
        self.unfinished = ""


def _without_nan(metrics: Metrics) -> Metrics:
    return {n: None if v is None or math.isnan(v) else v for n, v in metrics.items()}


def plain_state(optimizer: Optimizer) -> dict[str, Any]:
    """An optimizer's state with string keys, for a checkpoint."""
    state = optimizer.state_dict()
    return {**state, "state": {str(key): value for key, value in state["state"].items()}}


def load_plain_state(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load what `plain_state` returned; which of torch's kernels are used stays."""
    known = [set(group) for group in optimizer.param_groups]
    chosen = [
        {name: group[name] for name in IMPLEMENTATIONS & group.keys()}
        for group in optimizer.param_groups
    ]
    groups = [
        {k: tuple(v) if k == "betas" else v for k, v in group.items() if k in names} | own
        for group, names, own in zip(state["param_groups"], known, chosen, strict=True)
    ]
    values = {int(key): value for key, value in state["state"].items()}
    optimizer.load_state_dict({"state": values, "param_groups": groups})
    for group, names in zip(optimizer.param_groups, known, strict=True):
        if absent := sorted(names - set(group)):  # torch adds those that an older one did not have
            raise ValueError(f"the optimizer's setting {absent[0]!r} is missing")


def run_state(
    state: LoopState, task: Task[Any], optimizers: Sequence[Optimizer], batch_size: int
) -> dict[str, Any]:
    """Everything the rest of a run depends on, except the rows of a store.

    Args:
        state: The progress of the run.
        task: What is trained.
        optimizers: Of dense weights, and of rows if they are in a store.
        batch_size: The batch of one rank.
    """
    return {
        "num_ranks": world_size(),
        "batch_size": batch_size,
        "data": task.fingerprint,
        "loop": asdict(state),
        "model": dense_state(task.trained, task.embeddings.store),
        "optimizers": [plain_state(optimizer) for optimizer in optimizers],
        "random": random_state(),
    }


def load_run_state(
    saved: Mapping[str, Any], task: Task[Any], optimizers: Sequence[Optimizer]
) -> LoopState:
    """Load what `run_state` returned; returns the progress of the run."""
    state = LoopState.from_dict(saved["loop"])
    load_dense_state(task.trained, task.embeddings.store, saved["model"])
    for optimizer, saved_optimizer in zip(optimizers, saved["optimizers"], strict=True):
        load_plain_state(optimizer, saved_optimizer)
    load_random_state(saved["random"])
    return state


def require_same_run(saved: Mapping[str, Any], task: Task[Any], batch_size: int) -> None:
    """Refuse to continue with batches of another size, or on other data, than a run was saved with.

    Args:
        saved: What `run_state` returned.
        task: The task now.
        batch_size: The batch of one rank now.
    """
    num_ranks, ranks = saved["num_ranks"], world_size()
    whole = num_ranks * saved["batch_size"]
    if whole != batch_size * ranks:
        way_out = (
            f"set train.batch_size={whole // ranks}"
            if whole % ranks == 0
            else f"use a number of ranks that divides {whole}"
        )
        raise ConfigError(
            f"this run was saved with batches of {whole} ({_count(num_ranks)} of "
            f"{saved['batch_size']}), and {_count(ranks)} of {batch_size} would make "
            f"{batch_size * ranks}: {way_out}"
        )
    if saved["data"] != task.fingerprint:
        raise ConfigError(
            "the data has changed since this run was saved, and so have its batches: bring the "
            "old data back, or start a new run with --out"
        )


def _count(num_ranks: int) -> str:
    return "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"


def dense_state(model: nn.Module, store: RowStore | None) -> dict[str, Tensor]:
    """The state of a model without the rows of its store."""
    rows = _prefix(model, store)
    state = model.state_dict().items()
    return {name: value for name, value in state if rows is None or not name.startswith(rows)}


def load_dense_state(model: nn.Module, store: RowStore | None, state: Mapping[str, Tensor]) -> None:
    """Load what `dense_state` returned; a `RuntimeError` if names or shapes differ."""
    rows = _prefix(model, store)
    absent, unknown = model.load_state_dict(state, strict=False)
    odd = [*unknown, *(name for name in absent if rows is None or not name.startswith(rows))]
    if odd:
        raise RuntimeError(f"the model and its saved state disagree about {odd[0]!r}")


def _prefix(model: nn.Module, store: RowStore | None) -> str | None:
    """The prefix of the store's buffers in the model's state."""
    return next((f"{name}." for name, part in model.named_modules() if part is store), None)
