"""The contract of a task: how batches are made, what the loss is, what is measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.collection import EmbeddingCollection
from outsize.contracts import ReclusterReport
from outsize.data.click_data import Split
from outsize.errors import ConfigError, DataError
from outsize.optimizers import RowOptimizer
from outsize.ranks.collectives import rank, world_size
from outsize.spec import MemoryUse
from outsize.tables import ProbeBlock
from outsize.training.metric_names import Metrics

Batch = TypeVar("Batch")


class RankPart(NamedTuple):
    """Whose part of each batch to make: that of one rank of several."""

    rank: int
    num_ranks: int

    @classmethod
    def own(cls) -> RankPart:
        """The part of this process."""
        return cls(rank(), world_size())


class Task(ABC, Generic[Batch]):
    """A model with its data.

    Attributes:
        model: What is trained.
        device: Where it is.
        embeddings: The model's embeddings.
        rows: The optimizer of its rows, if they are in a store.
        fingerprint: Changes when the data does; a run resumes on the same data only.
        judge: The metric by which the best validation is chosen.
        higher_is_better: Whether a higher value of it is better.
        finds_ids: Whether `probe_batches` leaves out examples without ids of a block.
        validates_loss: Whether the loss of validation is the mean of `loss` over examples.
    """

    model: nn.Module
    device: torch.device
    embeddings: EmbeddingCollection
    rows: RowOptimizer | None
    fingerprint: str
    judge: str = "loss"
    higher_is_better: bool = False
    finds_ids: bool = False
    validates_loss: bool = False
    _half: bool = False
    _forward: nn.Module

    @property
    def trained(self) -> nn.Module:
        """The module whose parameters the dense optimizer trains; by default the model."""
        return self.model

    @abstractmethod
    def num_batches(self, num_ranks: int | None = None) -> int:
        """Batches in one epoch of so many ranks; by default of those there are."""

    @abstractmethod
    def train_batches(
        self, epoch: int, start: int, part: RankPart | None = None
    ) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on, on the task's device.

        Args:
            epoch: The epoch, from 0.
            start: Number of the first batch.
            part: Whose part of them; by default that of this rank.
        """

    def prefetch(self, batch: Batch) -> None:
        """Start to read the rows of a batch, which is trained one step later; by default nothing.

        Called for every batch, in their order, if the store `reads_ahead`.
        """
        return

    @abstractmethod
    def num_examples(self, batch: Batch) -> int:
        """Examples in a batch over all ranks."""

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """What to minimise; its mean over ranks is the mean loss over the whole batch."""

    @abstractmethod
    def evaluate(self, split: Split) -> Metrics:
        """The metrics of a split over all ranks; "loss" and the judge among them."""

    def evaluation_details(self, split: Split) -> dict[str, Any]:
        """What is logged of the last evaluation of a split besides its metrics: by default nothing.

        Names that are not metrics are in `outsize.training.metric_names`.
        """
        return {}

    def badness(self, metrics: Mapping[str, float | None]) -> float:
        """The value that early stopping minimizes: the judge, negated if higher is better."""
        value = metrics[self.judge]
        if value is None:
            raise DataError(
                f"validation has no {self.judge} to choose the best step by: hold out more examples"
            )
        return -value if self.higher_is_better else value

    def begin(self) -> None:
        """Prepare the first step of a run, or after a recluster; by default nothing.

        Not called when a checkpoint is loaded. If `StopRequested` is raised here, it is called
        again on resuming.
        """
        return

    def commit(self) -> None:
        """Store what a step produced besides weights, after the update; by default nothing.

        If `StopRequested` is raised here, `finish_commit` does the rest on resuming.
        """
        return

    def finish_commit(self) -> None:
        """Finish a `commit` that was stopped; by default nothing."""
        return

    def take_sums(self) -> dict[str, tuple[float, int]]:
        """What is logged as a mean over steps: sums since the last call, with their step counts.

        Called by all ranks at every log line and checkpoint. The sums must not depend on how steps
        are divided among calls, or a resumed run would log other numbers: add in float64.
        """
        return {}

    def train_metrics(self) -> dict[str, float]:
        """Values logged with each training line; called by all ranks."""
        return {}

    def write_files(self, folder: Path) -> Mapping[str, Mapping[str, Any]]:
        """Write state of this rank alone into a checkpoint.

        Returns:
            For each file its size and SHA-256.
        """
        return {}

    def load_files(self, folder: Path) -> None:
        """Load what `write_files` wrote, after weights and rows; by default nothing."""
        return

    def extra_memory(self) -> dict[str, MemoryUse]:
        """Memory of this rank besides embeddings and dense weights, by name; by default none.

        The total is the sum over ranks.
        """
        return {}

    def recluster(self, step: int, optimizer: Optimizer) -> dict[str, ReclusterReport]:
        """Recluster tables after `step` steps; by default there are none.

        If `interrupts.check_stop` ends it, nothing has changed on any rank.

        Args:
            step: Steps taken.
            optimizer: The optimizer of the dense weights and tables.

        Returns:
            A report per table.
        """
        return {}

    def count_seen(self, step: int) -> dict[str, Tensor]:
        """How often training has read each id by a step, for each table; by default unknown."""
        return {}

    def seen(self, step: int) -> tuple[int, int]:
        """An epoch, and the number of its first batches that training has read by a step.

        It is the last whole epoch, or the beginning of the first.
        """
        epoch, batch = divmod(step, self.num_batches())
        return (epoch - 1, self.num_batches()) if epoch else (0, batch)

    def probe_batches(self, step: int, block: ProbeBlock, share: float) -> Iterator[Batch]:
        """Batches to train the rows of a block with, from what training has read by a step.

        A task leaves out examples without ids of the block if it can tell; by default none. All
        ranks get the same number of batches.

        Args:
            step: Steps taken.
            block: The block.
            share: Share of the examples to read, 0 to 1.
        """
        return self.read_batches(step, share)

    def read_batches(self, step: int, share: float) -> Iterator[Batch]:
        """A share, 0 to 1, of the batches that training has read by a step."""
        epoch, num_batches = self.seen(step)
        for number, batch in enumerate(islice(self.train_batches(epoch, 0), num_batches)):
            if int((number + 1) * share) > int(number * share):
                yield batch

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Compute losses in evaluation mode, without DDP, and without a trace in the run's state.

        No parameter gets a gradient here, which DDP would wait for.
        """
        forward, self._forward = self._forward, self.trained
        self.model.eval()
        try:
            yield
        finally:
            self._forward = forward
            self.model.train()

    def release_ranks(self) -> None:
        """Drop whatever refers to the process group, before that is destroyed; by default nothing.

        If DDP held the last reference, the group would end while Python's lock is held, and wait
        forever for a thread that needs this lock.
        """
        return

    def raise_if_flawed(self) -> None:
        """Raise what a device flagged since the last call: bad ids, refused updates."""
        self.embeddings.raise_if_bad_ids()
        if self.rows is not None:
            self.rows.raise_if_non_finite()

    def use_precision(self, precision: str) -> None:
        """Compute in `train.precision` inside `autocast`; raises if the device cannot."""
        self._half = precision == "bfloat16"
        if self._half and self.device.type != "cuda":
            raise ConfigError(
                f"train.precision = 'bfloat16' is for CUDA, but the device is {self.device}"
            )

    def autocast(self) -> AbstractContextManager[object]:
        """The context of a forward pass, in the precision of the run."""
        return torch.autocast("cuda", torch.bfloat16) if self._half else nullcontext()
