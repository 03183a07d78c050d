"""What a task tells the loop: how batches are made, what the loss is, what is measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.collection import EmbeddingCollection
from outsize.contracts import ReclusterReport
from outsize.data.click_data import Split
from outsize.errors import DataError
from outsize.optimizers import RowOptimizer
from outsize.spec import MemoryUse
from outsize.training.metric_names import Metrics

Batch = TypeVar("Batch")


class Task(ABC, Generic[Batch]):
    """A model with its data.

    Attributes:
        model: What is trained.
        device: Where it is.
        rows: The optimizer of its rows, where they live in a store.
        judge: The metric that says which validation is best.
        higher_is_better: Whether a greater one is.
    """

    model: nn.Module
    device: torch.device
    rows: RowOptimizer | None
    judge: str = "loss"
    higher_is_better: bool = False

    @property
    @abstractmethod
    def embeddings(self) -> EmbeddingCollection:
        """The model's embeddings."""

    @property
    def trained(self) -> nn.Module:
        """All that the optimizer of dense weights trains; by default the model."""
        return self.model

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Changes when the data does; a run resumes on the same data only."""

    @abstractmethod
    def num_batches(self) -> int:
        """Batches in one epoch."""

    @abstractmethod
    def train_batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """A rank's part of an epoch's batches from number `start` on, where the model is."""

    @abstractmethod
    def num_examples(self, batch: Batch) -> int:
        """Examples in a batch, those of all ranks."""

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """What to minimise; its mean over ranks is the mean loss over the whole batch."""

    @abstractmethod
    def evaluate(self, split: Split) -> Metrics:
        """The metrics of a split over all ranks; "loss" and the judge among them."""

    def badness(self, metrics: Mapping[str, float | None]) -> float:
        """By what the best validation is chosen, and a run stopped early: the lower, the better."""
        value = metrics[self.judge]
        if value is None:
            raise DataError(
                f"validation has no {self.judge} to choose the best step by: hold out more examples"
            )
        return -value if self.higher_is_better else value

    def begin(self) -> None:
        """Get ready for the first step of a run, or of newly clustered tables; by default nothing.

        Where a checkpoint is loaded, that brings all there is. Where `StopRequested` is raised
        here, this is done again.
        """
        return

    def commit(self) -> None:
        """Keep what a step has made besides weights, once those are updated; by default nothing.

        Where `StopRequested` is raised here, `finish_commit` does the rest once the run is resumed.
        """
        return

    def finish_commit(self) -> None:
        """Do the rest of a `commit` that was stopped; by default nothing."""
        return

    def take_sums(self) -> dict[str, tuple[float, int]]:
        """What is logged as a mean over steps: sums since the last call and of how many steps.

        Called by all ranks at every log line and checkpoint. The sums must not depend on how steps
        are divided among calls, or a resumed run would log other numbers: add in float64.
        """
        return {}

    def train_metrics(self) -> dict[str, float]:
        """What is logged with a training line as it stands then; called by all ranks."""
        return {}

    def write_files(self, folder: Path) -> Mapping[str, Mapping[str, Any]]:
        """Write what this rank alone knows into a checkpoint.

        Returns:
            For each file its size and SHA-256.
        """
        return {}

    def load_files(self, folder: Path) -> None:
        """Bring back what `write_files` wrote, once weights and rows are; by default nothing."""
        return

    def memory_beside(self) -> dict[str, MemoryUse]:
        """What this rank keeps besides embeddings and dense weights, by name; by default nothing.

        Ranks share it: what it costs is the sum over ranks.
        """
        return {}

    def recluster(self, step: int, optimizer: Optimizer) -> dict[str, ReclusterReport]:
        """Recluster what can be after `step` steps; by default nothing can.

        Where `interrupts.check_stop` ends it, nothing has changed on any rank.

        Args:
            step: Steps taken.
            optimizer: The optimizer of the dense weights and tables.

        Returns:
            A report for each table that was.
        """
        return {}

    @abstractmethod
    def raise_if_flawed(self) -> None:
        """Report what a device flagged since the last call: bad ids, refused updates."""
