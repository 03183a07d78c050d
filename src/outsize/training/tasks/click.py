"""Predicting clicks: binary cross-entropy over a click log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outsize.data import ClickBatch, ClickData
from outsize.data.click_data import SPLITS, Split
from outsize.data.on_device import batches_on
from outsize.errors import DataError
from outsize.metrics import Calibration, ClickMetrics
from outsize.models import ClickModel
from outsize.ranks.collectives import check_stop_together, sum_over_ranks, world_size
from outsize.tables import ProbeBlock
from outsize.training.build import build_click_data, build_device, build_model
from outsize.training.config import RunConfig
from outsize.training.metric_names import Metrics
from outsize.training.probed_examples import BATCHES_PER_CHUNK, matching_batches, touching
from outsize.training.tasks.base import RankPart, Task

_BATCHES_PER_LOOK = 16  # evaluated between two looks whether to stop


class ClickTask(Task[ClickBatch]):
    """A click model with its log.

    Attributes:
        data: The log.
        device: Where the model is.
    """

    model: ClickModel
    finds_ids = True
    validates_loss = True

    def __init__(self, config: RunConfig) -> None:
        self.device = build_device(config.train.device)
        self.data: ClickData = build_click_data(config).to(self.device)
        self.model = build_model(config, self.data).to(self.device)
        self.fingerprint = self.data.fingerprint
        self.num_train = self.data.num_examples("train")
        self._eval_batch_size = config.train.eval_batch_size * world_size()
        self._best_possible: dict[Split, Metrics] = {}
        self._calibration: dict[Split, Calibration] = {}
        for split in SPLITS:
            if not self.data.num_examples(split):
                raise DataError(f"the {split} split has no examples: look at the split and filters")
        self._train_as(config)

    def train_batches(  # noqa: D102
        self, epoch: int, start: int, part: RankPart | None = None
    ) -> Iterator[ClickBatch]:
        part = part or RankPart.own()
        return self._batches("train", self._rank_batch_size * part.num_ranks, epoch, start, part)

    def prefetch(self, batch: ClickBatch) -> None:  # noqa: D102
        self.embeddings.prefetch(batch.ids)

    def loss(self, batch: ClickBatch) -> Tensor:  # noqa: D102
        total = F.binary_cross_entropy_with_logits(*self._predict(batch), reduction="sum")
        return total * (world_size() / batch.num_global)

    def count_seen(self, step: int) -> dict[str, Tensor]:  # noqa: D102
        counts: dict[str, Tensor] = {}
        by_feature = self.data.count_ids(min(step * self._batch_size, self.num_train))
        for feature in self.embeddings.features:
            counted, before = by_feature[feature.name], counts.get(feature.table)
            counts[feature.table] = counted if before is None else before + counted
        return counts

    @torch.no_grad()
    def probed_loss(self, block: ProbeBlock) -> float:
        """As of every task, up to a constant: the sum over the examples that have ids of the block.

        Whatever its rows are, the loss of all others is the same.
        """
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        found = matching_batches(
            lambda low, high: self._examples("validation", low, high),
            lambda batch: self._touching(batch, block),
            self.data.num_examples("validation"),
            max(1, self._eval_batch_size // BATCHES_PER_CHUNK),  # no more at a time than evaluated
            1.0,
            self.device,
        )
        for batch, rows, num_global in found:
            part = replace(batch.take(rows), num_global=num_global)
            total += self.loss(part).double() * num_global
        self.raise_if_flawed()
        return float(sum_over_ranks(total)) / world_size()

    def _examples(self, split: Split, low: int, high: int, epoch: int = 0) -> ClickBatch:
        return self.data.examples(split, low, high, epoch).to(self.device)

    def _touching(self, batch: ClickBatch, block: ProbeBlock) -> Tensor:
        features = self.embeddings.features
        return touching([(f.table, batch.ids[f.name]) for f in features], block)

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
        self,
        split: Split,
        batch_size: int,
        epoch: int = 0,
        start: int = 0,
        part: RankPart | None = None,
    ) -> Iterator[ClickBatch]:
        """Batches, or a rank's parts of them, where the model is; made ahead for a GPU."""
        number, num_ranks = part or RankPart.own()
        batches = self.data.batches(
            split, batch_size, epoch=epoch, start=start, rank=number, world_size=num_ranks
        )
        if self.device.type == "cpu":
            return batches
        if split != "train":
            return batches_on(batches, self.device)
        return batches_on(batches, self.device, _without_probability)


def _without_probability(batch: ClickBatch) -> ClickBatch:
    """A batch as training reads it; one that is packed already stays as it is."""
    return batch if batch.buffer is not None else replace(batch, probability=None)
