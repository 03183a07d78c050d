"""Predicting clicks: binary cross-entropy over a click log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from outsize.data import ClickBatch, ClickData
from outsize.data.clicks import Split
from outsize.data.prefetch import prefetch
from outsize.errors import ConfigError
from outsize.metrics import ClickMetrics
from outsize.models import ClickModel
from outsize.training.build import build_device, build_model, build_row_optimizer
from outsize.training.config import RunConfig
from outsize.training.tasks.base import Task


class ClickTask(Task[ClickBatch]):
    """A click model with its log.

    Attributes:
        data: The log.
        device: Where the model is.
    """

    model: ClickModel

    def __init__(self, config: RunConfig) -> None:
        self.data: ClickData = config.data.build()
        self.device = build_device(config.train.device)
        self.model = build_model(config, self.data).to(self.device)
        self.rows = build_row_optimizer(config, self.model.embeddings.store)
        self._batch_size = config.train.batch_size
        self._eval_batch_size = config.train.eval_batch_size
        self._half = config.train.precision == "bfloat16"
        self._best_possible: dict[Split, dict[str, float]] = {}
        if self._half and self.device.type != "cuda":
            raise ConfigError(
                f"train.precision = 'bfloat16' is for CUDA, but the device is {self.device}"
            )

    def num_batches(self) -> int:  # noqa: D102
        return self.data.num_batches("train", self._batch_size)

    def train_batches(self, epoch: int, start: int) -> Iterator[ClickBatch]:  # noqa: D102
        batches = self.data.batches("train", self._batch_size, epoch=epoch, start=start)
        return self._on_device(batches)

    def num_examples(self, batch: ClickBatch) -> int:  # noqa: D102
        return batch.num_examples

    def loss(self, batch: ClickBatch) -> Tensor:  # noqa: D102
        return F.binary_cross_entropy_with_logits(*self._predict(batch))

    def raise_if_flawed(self) -> None:  # noqa: D102
        self.model.embeddings.raise_if_bad_ids()
        if self.rows is not None:
            self.rows.raise_if_non_finite()

    @torch.no_grad()
    def evaluate(self, split: Split) -> dict[str, float]:
        """Log loss, AUC and the rest of `ClickMetrics`, with Bayes' loss and AUC where known."""
        self.model.eval()
        metrics, best_possible = ClickMetrics(), ClickMetrics()
        for batch in self._on_device(self.data.batches(split, self._eval_batch_size)):
            metrics.add(*self._predict(batch))
            if split not in self._best_possible and batch.probability is not None:
                best_possible.add(torch.logit(batch.probability, eps=1e-7), batch.labels)
        self.model.train()
        self.raise_if_flawed()
        if split not in self._best_possible:
            bayes = best_possible.result()
            known = best_possible.num_examples > 0
            self._best_possible[split] = (
                {"bayes_loss": bayes["loss"], "bayes_auc": bayes["auc"]} if known else {}
            )
        return {**metrics.result(), **self._best_possible[split]}

    def _predict(self, batch: ClickBatch) -> tuple[Tensor, Tensor]:
        with self._precision():
            return self.model(batch.dense, batch.ids), batch.labels

    def _on_device(self, batches: Iterator[ClickBatch]) -> Iterator[ClickBatch]:
        """Batches where the model is; a GPU gets them made ahead, a CPU is busy enough."""
        if self.device.type == "cpu":
            return batches
        return prefetch(batches, lambda batch: batch.to(self.device))

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast("cuda", torch.bfloat16) if self._half else nullcontext()
