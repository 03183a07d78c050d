"""Predicting clicks: binary cross-entropy over a click log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from outsize.contracts import ReclusterReport
from outsize.data import ClickBatch, ClickData
from outsize.data.click_data import SPLITS, Split
from outsize.data.prefetch import prefetch
from outsize.errors import DataError, ReclusterError
from outsize.metrics import Calibration, ClickMetrics
from outsize.models import ClickModel
from outsize.ranks.collectives import check_stop_together, rank, world_size
from outsize.ranks.failures import failing_together
from outsize.training.build import (
    build_click_data,
    build_device,
    build_model,
    data_parallel,
)
from outsize.training.config import RunConfig
from outsize.training.metric_names import Metrics
from outsize.training.tasks.base import Task

_BATCHES_PER_LOOK = 16  # evaluated between two looks whether to stop


class ClickTask(Task[ClickBatch]):
    """A click model with its log.

    Attributes:
        data: The log.
        device: Where the model is.
    """

    model: ClickModel

    def __init__(self, config: RunConfig) -> None:
        self.device = build_device(config.train.device)
        self.data: ClickData = build_click_data(config).to(self.device)
        self.model = build_model(config, self.data).to(self.device)
        self.embeddings = self.model.embeddings
        self.rows = config.embeddings.build_row_optimizer(self.embeddings.store)
        self.fingerprint = self.data.fingerprint
        self._forward = data_parallel(config, self.model)
        self._batch_size = config.train.batch_size * world_size()
        self._eval_batch_size = config.train.eval_batch_size * world_size()
        self._weighted = config.embeddings.weighs_ids
        self._best_possible: dict[Split, Metrics] = {}
        self._calibration: dict[Split, Calibration] = {}
        for split in SPLITS:
            if not self.data.num_examples(split):
                raise DataError(f"the {split} split has no examples: look at the split and filters")
        self.use_precision(config.train.precision)

    def num_batches(self) -> int:  # noqa: D102
        return self.data.num_batches("train", self._batch_size)

    def train_batches(self, epoch: int, start: int) -> Iterator[ClickBatch]:  # noqa: D102
        return self._batches("train", self._batch_size, epoch, start)

    def num_examples(self, batch: ClickBatch) -> int:  # noqa: D102
        return batch.num_global

    def loss(self, batch: ClickBatch) -> Tensor:  # noqa: D102
        total = F.binary_cross_entropy_with_logits(*self._predict(batch), reduction="sum")
        return total * (world_size() / batch.num_global)

    def release_ranks(self) -> None:
        """Drop DDP, which holds the process group."""
        self._forward = self.model

    def recluster(self, step: int, optimizer: Optimizer) -> dict[str, ReclusterReport]:  # noqa: D102
        num_seen = min(step * self._batch_size, self.data.num_examples("train"))
        with failing_together(ReclusterError):
            counts = self._count_by_table(num_seen)
        return self.embeddings.recluster(optimizer, counts)

    def _count_by_table(self, num_seen: int) -> dict[str, Tensor]:
        """How often ids of each table occur in the first examples, where the first rank asks."""
        counts: dict[str, Tensor] = {}
        if rank() == 0 and self._weighted:
            by_feature = self.data.count_ids(num_seen)
            for feature in self.embeddings.features:
                counted, before = by_feature[feature.name], counts.get(feature.table)
                counts[feature.table] = counted if before is None else before + counted
        return counts

    @torch.no_grad()
    def evaluate(self, split: Split) -> Metrics:
        """Log loss, AUC and the rest of `ClickMetrics`, with Bayes' loss and AUC where known."""
        self.model.eval()
        metrics, best_possible = ClickMetrics(), ClickMetrics()
        for number, batch in enumerate(self._batches(split, self._eval_batch_size)):
            if number % _BATCHES_PER_LOOK == 0:
                check_stop_together(self.device)
            metrics.add(*self._predict(batch))
            if split not in self._best_possible and batch.probability is not None:
                best_possible.add(torch.logit(batch.probability, eps=1e-7), batch.labels)
        self.model.train()
        self.raise_if_flawed()
        metrics = metrics.gather()
        self._calibration[split] = metrics.calibration()
        if split not in self._best_possible:
            best_possible = best_possible.gather()
            bayes = best_possible.result()
            known = best_possible.num_examples > 0
            self._best_possible[split] = (
                {"bayes_loss": bayes["loss"], "bayes_auc": bayes["auc"]} if known else {}
            )
        return {**metrics.result(), **self._best_possible[split]}

    def evaluation_details(self, split: Split) -> dict[str, Any]:
        """Predicted and observed rates of groups of examples, for the calibration plot."""
        if split not in self._calibration:
            return {}
        rates = asdict(self._calibration[split])
        return {f"calibration_{name}": values for name, values in rates.items()}

    def _predict(self, batch: ClickBatch) -> tuple[Tensor, Tensor]:
        with self.autocast():
            return self._forward(batch.dense, batch.ids), batch.labels

    def _batches(
        self, split: Split, batch_size: int, epoch: int = 0, start: int = 0
    ) -> Iterator[ClickBatch]:
        """Batches, or a rank's parts of them, where the model is; made ahead for a GPU."""
        batches = self.data.batches(
            split, batch_size, epoch=epoch, start=start, rank=rank(), world_size=world_size()
        )
        if self.device.type == "cpu":
            return batches
        return prefetch(batches, lambda batch: batch.to(self.device))
