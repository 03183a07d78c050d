"""One training step: forward, backward, clipping, and the updates of weights and rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from outsize.errors import NonFiniteError
from outsize.training.config import RunConfig
from outsize.training.gradients import clip_gradients
from outsize.training.loop_state import LoopState
from outsize.training.non_finite import non_finite_error
from outsize.training.tasks import Task
from outsize.training.training_sums import TrainingSums


class TrainStep(ABC):
    """Takes the steps of a run."""

    @abstractmethod
    def take(self, batch: Any, state: LoopState) -> None:
        """Train on a batch.

        Args:
            batch: The batch.
            state: The progress of the run before the step, for errors.
        """

    def renew(self) -> None:
        """Called after tables were reclustered, and so may have other tensors."""
        return


class EagerStep(TrainStep):
    """Launches the kernels of a step one by one.

    Args:
        task: What is trained.
        config: The run.
        optimizers: Of dense weights, and of rows if they are in a store.
        sums: Where losses are added.
    """

    def __init__(
        self,
        task: Task[Any],
        config: RunConfig,
        optimizers: Sequence[Optimizer],
        sums: TrainingSums,
    ) -> None:
        self._task = task
        self._optimizers = optimizers
        self._sums = sums
        self._limit, self._log_every = config.train.clip_norm, config.train.log_every
        store = None if task.rows is None else task.rows.store
        in_step = not config.is_asynchronous
        self._num_workers = store.num_workers if store is not None and in_step else 1

    def take(self, batch: Any, state: LoopState) -> None:  # noqa: D102
        is_logged = self.is_logged(state)
        try:
            loss, norm = self.gradients(batch, over_ranks=is_logged)
        except NonFiniteError as error:  # of fused rows, which are updated here
            raise non_finite_error(self._task.trained, self._task.rows, state) from error
        if is_logged:
            self._sums.set_gradient_norm(norm)
        if not norm.is_cuda and not (math.isfinite(float(norm)) and math.isfinite(loss.item())):
            raise non_finite_error(self._task.trained, self._task.rows, state)
        self.update(loss, norm)

    def is_logged(self, state: LoopState) -> bool:
        """Whether a line is logged after the next step."""
        return (state.step + 1) % self._log_every == 0

    def abandon(self) -> None:
        """Drop the gradients of a step that was not finished."""
        rows = self._task.rows
        if rows is not None and rows.store.fused is not None:
            rows.store.fused.finish_step()
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def gradients(self, batch: Any, over_ranks: bool = False) -> tuple[Tensor, Tensor]:
        """Compute the gradients of a batch, clipped; returns the loss and their norm before.

        Args:
            batch: The batch.
            over_ranks: Whether the norm over all ranks is wanted without clipping, too.
        """
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        loss = self._task.loss(batch)
        loss.backward()
        rows = self._task.rows
        if rows is not None:
            rows.store.reduce_pending()
        norm = clip_gradients(
            self._optimizers[0], rows, self._limit, self._num_workers, self._task.device, over_ranks
        )
        return loss.detach(), norm

    def update(self, loss: Tensor, norm: Tensor) -> None:
        """Apply the gradients, and add the loss to the sums.

        On CUDA a check for NaN would stall the device, so that NaN is flagged, and found at the
        next log line, validation or checkpoint; none of the three is written from a run that has
        seen one.
        """
        for optimizer in self._optimizers:
            optimizer.step()
        self._sums.add(loss, norm.to(loss.device))
