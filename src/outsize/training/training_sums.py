"""Sums over the training steps since the last line of the log."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
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

    Attributes:
        train_s: Seconds of training so far, those before a checkpoint that was loaded included.
    """

    def __init__(self, task: Task[Any]) -> None:
        self._task = task
        self._losses: Tensor | None = None
        self._gradient_norm: Tensor | None = None
        self._num_examples = 0
        self.train_s = 0.0
        self._last_line_s = 0.0
        self._clock = time.perf_counter()

    def begin(self, train_s: float | None = None) -> None:
        """Start the clock of training.

        Args:
            train_s: Seconds of training before this; by default as many as there are.
        """
        self.train_s = self.train_s if train_s is None else train_s
        self._last_line_s = self.train_s
        self._clock = time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent inside does not count as training time."""
        self._read_clock()
        try:
            yield
        finally:
            self._clock = time.perf_counter()

    def add(self, loss: Tensor, num_examples: int = 0) -> None:
        """Add a loss, and count the examples of its step over all ranks.

        In float64, sums of float32 losses do not depend on where they are folded.
        """
        loss = loss.double()
        self._losses = loss if self._losses is None else self._losses + loss
        self._num_examples += num_examples

    def set_gradient_norm(self, norm: Tensor) -> None:
        """Log a norm with the next line; it is read from the device when sums are folded."""
        self._gradient_norm = norm.detach()

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
        self._read_clock()

    def fold(self, state: LoopState) -> None:
        """Move all sums into the state."""
        self.fold_losses(state)
        for sums in gather_values(self._task.take_sums()):
            for name, (total, count) in sums.items():
                known, steps = state.sums.get(name, (0.0, 0))
                state.sums[name] = [known + total, steps + count]
        if self._gradient_norm is not None:
            state.sums["gradient_norm"] = [float(self._gradient_norm), 1]
            self._gradient_norm = None
        rows = self._task.rows
        state.row_counts = add_counts(None if rows is None else rows.store, state.row_counts)

    def take_line(self, state: LoopState, rates: Mapping[str, float]) -> dict[str, Any]:
        """The line of the log for all steps since the last one; all sums start at 0 again.

        Args:
            state: The progress of the run.
            rates: Learning rates of the last step, by name.
        """
        self.fold(state)
        seconds = max(self.train_s - self._last_line_s, 1e-9)
        line = {
            "step": state.step,
            "split": "train",
            "epoch": state.epoch,
            "loss": state.loss_sum / state.loss_count,
            **rates,
            "train_s": round(self.train_s, 3),
            "examples_per_s": round(self._num_examples / seconds, 1),
            **{name: total / count for name, (total, count) in state.sums.items()},
            **self._task.train_metrics(),
            **as_metrics(state.row_counts),
        }
        self._last_line_s, self._num_examples = self.train_s, 0
        state.loss_sum, state.loss_count, state.row_counts, state.sums = 0.0, 0, {}, {}
        return line

    def _read_clock(self) -> None:
        now = time.perf_counter()
        self.train_s += now - self._clock
        self._clock = now
