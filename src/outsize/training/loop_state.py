"""What a checkpoint holds of a loop and its optimizers, as trees of plain values and tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch.optim import Optimizer


@dataclass
class LoopState:
    """Where a run stands.

    Attributes:
        step: Steps taken.
        epoch: The current epoch, from 0.
        batch: Batches of it already used.
        loss_sum: Sum of training losses since the last log line.
        loss_count: How many those are.
        epoch_best: Best validation loss of the current epoch.
        previous_best: Best validation loss of the epoch before.
        best: Metrics of the best validation so far, with its step.
        test: Test metrics at that step.
        stopped: Why the run ended; empty while it goes on.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    epoch_best: float = math.inf
    previous_best: float = math.inf
    best: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    stopped: str = ""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LoopState:
        """Read back what `asdict` wrote."""
        return cls(**{f.name: values[f.name] for f in fields(cls)})


def plain_state(optimizer: Optimizer) -> dict[str, Any]:
    """An optimizer's state with string keys, as a checkpoint wants it."""
    state = optimizer.state_dict()
    return {**state, "state": {str(key): value for key, value in state["state"].items()}}


def load_plain_state(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Give an optimizer the state that `plain_state` took from one like it."""
    groups = [
        {key: tuple(value) if key == "betas" else value for key, value in group.items()}
        for group in state["param_groups"]
    ]
    values = {int(key): value for key, value in state["state"].items()}
    optimizer.load_state_dict({"state": values, "param_groups": groups})
