"""The contract of a task: how batches are made, what the loss is, what is measured."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.collection import EmbeddingCollection
from outsize.contracts import ReclusterReport
from outsize.data.click_data import Split
from outsize.errors import ConfigError, DataError, ReclusterError
from outsize.optimizers import RowOptimizer
from outsize.ranks.collectives import rank, world_size
from outsize.ranks.failures import failing_together
from outsize.spec import MemoryUse
from outsize.tables import ProbeBlock
from outsize.training.build import data_parallel
from outsize.training.config import RunConfig
from outsize.training.fused_rows import uses_fused_rows
from outsize.training.metric_names import Metrics
from outsize.training.probed_examples import matching_batches


@runtime_checkable
class SharedBatch(Protocol):
    """A rank's part of a batch of all ranks."""

    @property
    def num_global(self) -> int:
        """Examples of the batch over all ranks."""


Batch = TypeVar("Batch", bound=SharedBatch)


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
        num_train: Number of training examples.
        fingerprint: Changes when the data does; a run resumes on the same data only.
        judge: The metric by which the best validation is chosen.
        higher_is_better: Whether a higher value of it is better.
        tolerance: Of k-means, where tables are reclustered.
        finds_ids: Whether `probe_batches` leaves out examples without ids of a block.
        validates_loss: Whether the loss of validation is the mean of `loss` over examples.
    """

    model: nn.Module
    device: torch.device
    embeddings: EmbeddingCollection
    rows: RowOptimizer | None
    num_train: int
    fingerprint: str
    judge: str = "loss"
    higher_is_better: bool = False
    tolerance: float = 0.0
    finds_ids: bool = False
    validates_loss: bool = False
    _half: bool = False
    _forward: nn.Module
    _rank_batch_size: int
    _weighted: bool

    def _train_as(self, config: RunConfig) -> None:
        """Set what all tasks have, once there is a model and what else is trained."""
        self.embeddings = self.model.embeddings  # type: ignore[assignment]
        store = self.embeddings.store
        options = {"fused": True} if uses_fused_rows(config, store) else {}
        self.rows = config.embeddings.build_row_optimizer(store, **options)
        self._forward = data_parallel(config, self.trained)
        self._rank_batch_size = config.train.batch_size
        self._weighted = config.embeddings.weighs_ids
        self.tolerance = config.embeddings.recluster_tolerance
        self.use_precision(config.train.precision)

    @property
    def trained(self) -> nn.Module:
        """The module whose parameters the dense optimizer trains; by default the model."""
        return self.model

    @property
    def _batch_size(self) -> int:
        """Examples per batch, over all ranks."""
        return self._rank_batch_size * world_size()

    def num_batches(self, num_ranks: int | None = None) -> int:
        """Batches in one epoch of so many ranks; by default of those there are."""
        return -(-self.num_train // (self._rank_batch_size * (num_ranks or world_size())))

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

    def num_examples(self, batch: Batch) -> int:
        """Examples in a batch over all ranks."""
        return batch.num_global

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
        """Recluster tables after `step` steps.

        If `interrupts.check_stop` ends it, nothing has changed on any rank.

        Args:
            step: Steps taken.
            optimizer: The optimizer of the dense weights and tables.

        Returns:
            A report per table.
        """
        counts = self.count_occurring(step) if self._weighted else {}
        return self.embeddings.recluster(optimizer, counts, tolerance=self.tolerance)

    def count_occurring(self, step: int) -> dict[str, Tensor]:
        """What `count_seen` returns on the first rank, of tables of which an id occurs; else {}.

        Others, as of a feature that is still empty, are clustered as if counts were unknown. All
        ranks call it: if the first fails, all do.
        """
        with failing_together(ReclusterError):
            counts = self.count_seen(step) if rank() == 0 else {}
            return {name: found for name, found in counts.items() if bool(found.any())}

    def count_seen(self, step: int) -> dict[str, Tensor]:
        """How often training has read each id by a step, for each table."""
        return self.count_ids()

    def count_ids(self) -> dict[str, Tensor]:
        """How often training reads each id of each table in an epoch; by default unknown."""
        return {}

    def seen(self, step: int) -> tuple[int, int]:
        """An epoch, and the number of its first batches that training has read by a step.

        It is the last whole epoch, or the beginning of the first.
        """
        epoch, batch = divmod(step, self.num_batches())
        return (epoch - 1, self.num_batches()) if epoch else (0, batch)

    def probe_batches(self, step: int, block: ProbeBlock, share: float) -> Iterator[Batch]:
        """Batches to train the rows of a block with, from what training has read by a step.

        A task that finds ids leaves out examples without ids of the block. All ranks get the same
        number of batches, which are as large as those of training at most.

        Args:
            step: Steps taken.
            block: The block.
            share: Share of the examples to read, 0 to 1.
        """
        if not self.finds_ids:
            yield from self.read_batches(step, share)
            return
        epoch, num_batches = self.seen(step)
        found = matching_batches(
            lambda low, high: self._examples("train", low, high, epoch),
            lambda batch: self._touching(batch, block),
            min(num_batches * self._batch_size, self.num_train),
            self._batch_size,
            share,
            self.device,
        )
        for batch, rows, num_global in found:
            yield replace(batch.take(rows), num_global=num_global)

    def probed_loss(self, block: ProbeBlock) -> float:
        """The loss of validation while a block is entered, NaN if it is not defined.

        Two of the same block can be compared; called in `frozen()`.

        Args:
            block: The block.
        """
        loss = self.evaluate("validation")["loss"]
        self.model.eval()  # an evaluation ends in training mode
        return math.nan if loss is None else loss

    def _examples(self, split: Split, low: int, high: int, epoch: int) -> Any:
        """Examples `low … high − 1` of an epoch as a batch; of tasks that find ids."""
        raise NotImplementedError

    def _touching(self, batch: Any, block: ProbeBlock) -> Tensor:
        """The examples with an id of a block, as places in the batch; of tasks that find ids."""
        raise NotImplementedError

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
        """Drop DDP, which refers to the process group, before that is destroyed.

        If DDP held the last reference, the group would end while Python's lock is held, and wait
        forever for a thread that needs this lock.
        """
        self._forward = self.trained

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
