"""Sums over the training steps since the last line of the log."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from outsize.errors import NonFiniteError
from outsize.kernels.step_sums.step_sums import add_step
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
        # They stay where they are, since a captured step adds to them.
        self._losses = torch.zeros((), dtype=torch.float64, device=task.device)
        self._num_finite = torch.zeros((), dtype=torch.int64, device=task.device)
        self._num_steps = 0
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

    def add(self, loss: Tensor, norm: Tensor) -> None:
        """Add the loss of a step, on the device; flag a loss or norm that is NaN or infinite.

        In float64, sums of float32 losses do not depend on where they are folded.
        """
        add_step(self._losses, self._num_finite, loss, norm)

    def count_step(self, num_examples: int) -> None:
        """Count a step, and its examples over all ranks."""
        self._num_steps += 1
        self._num_examples += num_examples

    def set_gradient_norm(self, norm: Tensor) -> None:
        """Log a norm with the next line; it is read from the device when sums are folded."""
        self._gradient_norm = norm.detach().clone()  # a captured step writes the next one there

    def fold_losses(self, state: LoopState) -> None:
        """Move the loss summed on the device into the state, and raise what a device flagged."""
        if self._num_steps:
            total = float(sum_over_ranks(self._losses)) / world_size()
            if not math.isfinite(total):
                raise self._non_finite_error(state)
            state.loss_sum += total
            self._losses.zero_()
            self._num_finite.zero_()
            self._num_steps = 0
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

    def _non_finite_error(self, state: LoopState) -> NonFiniteError:
        finite, last = int(self._num_finite), state.step
        before = last - self._num_steps
        is_own = not math.isfinite(float(self._losses))  # otherwise, another rank knows the step
        where = f"at step {before + finite + 1}" if is_own else f"in steps {before + 1} to {last}"
        return NonFiniteError(
            f"the loss or a gradient became NaN or infinite {where}; resume from the last "
            "checkpoint with a lower learning rate or train.clip_norm, or look at that batch's "
            "inputs"
        )

    def _read_clock(self) -> None:
        now = time.perf_counter()
        self.train_s += now - self._clock
        self._clock = now
