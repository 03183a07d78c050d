"""A training step as a CUDA graph: one launch for all kernels, from the look-up to the updates.

The first steps are taken one kernel at a time. Then a step is captured, over a batch that stays at
one place on the device, and every batch of that shape is copied there. Other batches (the last one
of an epoch) are trained as before. What changes from step to step and is not in the batch, such as
learning rates, is in tensors, which are written before each launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from outsize.contracts import RowStore
from outsize.data.click_data import ClickBatch
from outsize.data.packed_clicks import ClickLayout
from outsize.errors import ConfigError
from outsize.kernels.available import uses_triton
from outsize.optimizers import RowOptimizer
from outsize.ranks.collectives import world_size
from outsize.tables import TABLES
from outsize.training.config import RunConfig
from outsize.training.device_optimizers import RefreshedOptimizer
from outsize.training.loop_state import LoopState
from outsize.training.step import EagerStep, TrainStep
from outsize.training.tables_config import TablesConfig
from outsize.training.tasks import Task
from outsize.training.training_sums import TrainingSums

_EAGER_STEPS = 3  # torch asks for some before a capture, which make what is made once


def build_step(
    task: Task[Any],
    config: RunConfig,
    optimizers: Sequence[Optimizer],
    sums: TrainingSums,
    say: Callable[[str], None],
) -> TrainStep:
    """The step of a run: captured in a CUDA graph if the run asks for it, or by default can.

    Args:
        task: What is trained.
        config: The run.
        optimizers: Of dense weights, and of rows if they are in a store.
        sums: Where losses are added.
        say: Shows a message to the user.
    """
    step, wanted = EagerStep(task, config, optimizers, sums), config.train.cuda_graph
    if wanted is False:
        return step
    store = None if task.rows is None else task.rows.store
    reason = why_not_graphed(config, task.device, store)
    if wanted is None and (reason or not _is_known(config)):
        return step
    if reason:
        raise ConfigError(f"train.cuda_graph = true, but {reason}; or leave it out")
    return GraphedStep(step, optimizers, sums, None if wanted else say)


def why_not_graphed(config: RunConfig, device: torch.device, store: RowStore | None) -> str:
    """Why a run's step cannot be captured, and what would change that; empty if it can.

    Args:
        config: The run.
        device: Where it trains.
        store: Where its rows are, once their optimizer was made; `None` if tables are trained.
    """
    if device.type != "cuda":
        return f"the device is {device}: CUDA graphs are for train.device = 'cuda'"
    if config.task != "click":
        return f"this is a {config.task} model, whose steps differ in shape: graphs are for clicks"
    if world_size() > 1:
        return f"there are {world_size()} ranks, which exchange gradients: train on one"
    if store is not None and store.fused is None:
        return (
            "rows that are not fused are counted on the host in every step: set "
            "embeddings.optimizer.fused = true"
        )
    if store is not None and not uses_triton(store._no_ids()):
        return (
            "fused rows are updated on CUDA by Triton, which is not installed, older than 3.3, or "
            "not to be used"
        )
    return ""


def _is_known(config: RunConfig) -> bool:
    """Whether the model and its embeddings are ours, and keep nothing on the host that changes."""
    parts: list[type] = [type(config.model)]
    if isinstance(config.embeddings, TablesConfig):
        parts.append(TABLES[config.embeddings.method])
    return all(part.__module__.startswith(("outsize.models.", "outsize.tables.")) for part in parts)


class GraphedStep(TrainStep):
    """Replays a captured step.

    Args:
        eager: The step, which is captured, and taken where the graph does not fit.
        optimizers: Its optimizers.
        sums: Where it adds losses.
        say: Told why a step cannot be captured, if the run then goes on without; `None` raises.
    """

    def __init__(
        self,
        eager: EagerStep,
        optimizers: Sequence[Optimizer],
        sums: TrainingSums,
        say: Callable[[str], None] | None,
    ) -> None:
        self._eager = eager
        self._optimizers = optimizers
        self._sums = sums
        self._say = say
        self._is_refused = False
        self._captured: _Captured | None = None
        self._layout: ClickLayout | None = None
        self._num_alike = 0

    @property
    def is_captured(self) -> bool:
        """Whether batches of the usual shape are trained by a graph now."""
        return self._captured is not None

    def renew(self) -> None:
        """Capture again, after a few steps without a graph."""
        self._captured, self._num_alike = None, 0

    def take(self, batch: Any, state: LoopState) -> None:  # noqa: D102
        if self._captured is None and not self._is_refused:
            layout = _layout_of(batch)
            if layout is None:
                self._refuse("this run reads bags of ids, whose sizes differ from batch to batch")
            elif self._is_usual(layout):
                self._capture(layout, batch)
        if self._captured is None or not self._captured.fits(batch):
            self._eager.take(batch, state)
            return
        self._captured.replay(batch, self._optimizers)
        if self._eager.is_logged(state):
            self._sums.set_gradient_norm(self._captured.norm)

    def _is_usual(self, layout: ClickLayout) -> bool:
        """Whether as many batches as needed before a capture had this layout."""
        self._num_alike = self._num_alike + 1 if layout == self._layout else 0
        self._layout = layout
        return self._num_alike >= _EAGER_STEPS

    def _capture(self, layout: ClickLayout, batch: ClickBatch) -> None:
        try:
            self._captured = _Captured(self._eager, layout, batch)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._eager.abandon()
            self._refuse(f"it cannot be captured: {' '.join(str(error).split())[:300]}")

    def _refuse(self, reason: str) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        if self._say is None:
            raise ConfigError(f"train.cuda_graph = true, but {reason}: leave it out")
        self._say(f"note: steps run without a CUDA graph, since {reason}")


class _Captured:
    """A graph with its batch.

    Attributes:
        norm: The norm of the gradients of the last replay.
    """

    def __init__(self, step: EagerStep, layout: ClickLayout, batch: ClickBatch) -> None:
        self._layout = layout
        device = batch.labels.device
        self._buffer = torch.zeros(layout.num_bytes, dtype=torch.uint8, device=device)
        layout.pack(batch, self._buffer)
        own = layout.unpack(self._buffer)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile, as the one that makes batches does. It need
        # not be the current device, whose stream torch would capture.
        stream = _capture_stream(device)
        with (
            torch.cuda.device(device),
            torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"),
        ):
            loss, norm = step.gradients(own)
            step.update(loss, norm)
        self.norm: Tensor = norm

    def fits(self, batch: ClickBatch) -> bool:
        """Whether a batch of the same run has the layout."""
        return fits_layout(batch, self._layout)

    def replay(self, batch: ClickBatch, optimizers: Sequence[Optimizer]) -> None:
        """Train on a batch of the layout."""
        if batch.buffer is not None and batch.buffer.shape == self._buffer.shape:
            self._buffer.copy_(batch.buffer)
        else:
            self._layout.pack(batch, self._buffer)
        for optimizer in optimizers:
            if isinstance(optimizer, RefreshedOptimizer | RowOptimizer):
                optimizer.refresh_settings()
        self._graph.replay()


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of a device on which steps are captured."""
    return torch.cuda.Stream(device)


def fits_layout(batch: ClickBatch, layout: ClickLayout) -> bool:
    """Whether training can read a batch of the same run from a buffer of this layout."""
    if (batch.num_examples, batch.num_global) != (layout.num_examples, layout.num_global):
        return False
    if batch.buffer is not None:  # those of a run differ in nothing else
        return True
    found = _layout_of(batch)
    return found is not None and replace(found, has_probability=layout.has_probability) == layout


def _layout_of(batch: Any) -> ClickLayout | None:
    """The layout of a batch without its true probabilities, which training does not read."""
    if not isinstance(batch, ClickBatch):
        return None
    if batch.buffer is None and batch.probability is not None:
        batch = replace(batch, probability=None)
    return ClickLayout.of(batch)
