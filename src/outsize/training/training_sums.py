"""Sums over the training steps since the last line of the log."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from outsize.errors import NonFiniteError
from outsize.ranks.collectives import gather_values, sum_over_ranks, world_size
from outsize.training.loop_state import LoopState
from outsize.training.row_counts import add_counts, as_metrics
from outsize.training.tasks import Task


class TrainingSums:
    """Sums losses on the device, and what the task and its store count, until they are folded.

    Folding moves them into a `LoopState`, from where they are logged and saved. All ranks fold
    together.

    Args:
        task: The task that is trained.
    """

    def __init__(self, task: Task[Any]) -> None:
        self._task = task
        self._losses: Tensor | None = None
        self._num_examples = 0
        self._started = time.perf_counter()

    def begin(self) -> None:
        """Start the clock by which examples per second are measured."""
        self._started = time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent inside does not count as training time."""
        paused = time.perf_counter()
        yield
        self._started += time.perf_counter() - paused

    def add(self, loss: Tensor, num_examples: int = 0) -> None:
        """Add a loss, and count the examples of its step over all ranks.

        In float64, sums of float32 losses do not depend on where they are folded.
        """
        loss = loss.double()
        self._losses = loss if self._losses is None else self._losses + loss
        self._num_examples += num_examples

    def fold_losses(self, state: LoopState) -> None:
        """Move the loss summed on the device into the state, and raise what a device flagged."""
        if self._losses is not None:
            total = float(sum_over_ranks(self._losses)) / world_size()
            self._losses = None
            if not math.isfinite(total):
                raise NonFiniteError(
                    f"the loss or a gradient became NaN or infinite by step {state.step}; "
                    "resume from the last checkpoint with a lower learning rate or train.clip_norm"
                )
            state.loss_sum += total
        self._task.raise_if_flawed()

    def fold(self, state: LoopState) -> None:
        """Move all sums into the state."""
        self.fold_losses(state)
        for sums in gather_values(self._task.take_sums()):
            for name, (total, count) in sums.items():
                known, steps = state.sums.get(name, (0.0, 0))
                state.sums[name] = [known + total, steps + count]
        rows = self._task.rows
        state.row_counts = add_counts(None if rows is None else rows.store, state.row_counts)

    def take_line(self, state: LoopState, learning_rate: float) -> dict[str, Any]:
        """The line of the log for all steps since the last one; all sums start at 0 again."""
        self.fold(state)
        now = time.perf_counter()
        line = {
            "step": state.step,
            "split": "train",
            "epoch": state.epoch,
            "loss": state.loss_sum / state.loss_count,
            "learning_rate": learning_rate,
            "examples_per_s": round(self._num_examples / (now - self._started), 1),
            **{name: total / count for name, (total, count) in state.sums.items()},
            **self._task.train_metrics(),
            **as_metrics(state.row_counts),
        }
        self._started, self._num_examples = now, 0
        state.loss_sum, state.loss_count, state.row_counts, state.sums = 0.0, 0, {}, {}
        return line
