"""The state of a loop and its optimizers, as trees of plain values and tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.contracts import RowStore
from outsize.errors import ConfigError
from outsize.ranks.collectives import world_size
from outsize.training.metric_names import Metrics


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
        stopped: Why the run ended; empty while it goes on.
        unfinished: The stage after the last step in which the run was stopped; empty where all of
            them were gone through.
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

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LoopState:
        """Read back what `asdict` wrote.

        What an older version did not write is as at first, and a NaN, which it wrote for a metric
        that does not exist, is none.
        """
        state = cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})
        state.best, state.test = _without_nan(state.best), _without_nan(state.test)
        return state

    def go_through(self, stages: Mapping[str, Callable[[], None]]) -> None:
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
    """Load what `plain_state` returned."""
    known = [set(group) for group in optimizer.param_groups]
    groups = [
        {k: tuple(value) if k == "betas" else value for k, value in group.items() if k in names}
        for group, names in zip(state["param_groups"], known, strict=True)
    ]
    values = {int(key): value for key, value in state["state"].items()}
    optimizer.load_state_dict({"state": values, "param_groups": groups})
    for group, names in zip(optimizer.param_groups, known, strict=True):
        if absent := sorted(names - set(group)):  # torch adds those that an older one did not have
            raise ValueError(f"the optimizer's setting {absent[0]!r} is missing")


def require_same_batch(num_ranks: int, batch_size: int, batch_size_now: int) -> None:
    """Refuse to continue with batches of another size than a run was saved with.

    Args:
        num_ranks: Ranks that saved it.
        batch_size: The batch of one of them.
        batch_size_now: The batch of one rank now.
    """
    whole, ranks = num_ranks * batch_size, world_size()
    if whole == batch_size_now * ranks:
        return
    way_out = (
        f"set train.batch_size={whole // ranks}"
        if whole % ranks == 0
        else f"use a number of ranks that divides {whole}"
    )
    raise ConfigError(
        f"this run was saved with batches of {whole} ({_count(num_ranks)} of {batch_size}), and "
        f"{_count(ranks)} of {batch_size_now} would make {batch_size_now * ranks}: {way_out}"
    )


def require_same_data(saved: str, now: str) -> None:
    """Refuse to continue on other data than a run was saved with.

    Args:
        saved: The fingerprint of the data then.
        now: The fingerprint of the data now.
    """
    if saved != now:
        raise ConfigError(
            "the data has changed since this run was saved, and so have its batches: bring the "
            "old data back, or start a new run with --out"
        )


def random_state() -> dict[str, Any]:
    """The states of torch's generators."""
    devices = list(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": devices}


def load_random_state(state: Mapping[str, Any]) -> None:
    """Load what `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available() and state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


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
