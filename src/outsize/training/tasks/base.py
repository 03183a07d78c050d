"""What a task tells the loop: how batches are made, what the loss is, what is measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.contracts import ReclusterReport
from outsize.data.clicks import Split
from outsize.optimizers import RowOptimizer

Batch = TypeVar("Batch")


class Task(ABC, Generic[Batch]):
    """A model with its data.

    Attributes:
        model: What is trained.
        rows: The optimizer of its rows, where they live in a store.
    """

    model: nn.Module
    rows: RowOptimizer | None

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
    def evaluate(self, split: Split) -> dict[str, float]:
        """The metrics of a split over all ranks; "loss" among them."""

    def recluster(self, step: int, optimizer: Optimizer) -> dict[str, ReclusterReport]:
        """Recluster what can be after `step` steps; by default nothing can.

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
