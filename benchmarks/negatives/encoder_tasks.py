"""Training of a fine-tuned text encoder on tokens that are read once, for a grid of many runs.

Steps, draws and metrics are those of `outsize train`; the only other loss is that of
sentence-transformers, `CachedMultipleNegativesRankingLoss`, which is driven by the same loop.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.negatives.token_file import Tokens
from outsize.data import PairBatch, RetrievalData
from outsize.data.click_data import Split
from outsize.models.text import ITEM_TOKENS, QUERY_TOKENS
from outsize.models.text.groups import trimmed
from outsize.negatives.contract import ENCODED_AT_ONCE
from outsize.training.build import build_optimizer, build_retrieval_model
from outsize.training.config import RunConfig
from outsize.training.loop import Loop
from outsize.training.metric_names import Metrics
from outsize.training.retrieval_evaluation import QUERIES_PER_CHUNK, Encode
from outsize.training.tasks.retrieval import RetrievalTask


class TokenTask(RetrievalTask):
    """Retrieval over tokens in memory.

    Args:
        config: The run, with a model of sentence-transformers.
        tokens: The texts.
    """

    def __init__(self, config: RunConfig, tokens: Tokens) -> None:
        self._tokens = tokens
        self._evaluated_last: tuple[Encode, Tensor] | None = None
        super().__init__(config)
        self._num_at_once = ENCODED_AT_ONCE
        self._eval_queries = QUERIES_PER_CHUNK

    def _build(self, config: RunConfig) -> RetrievalData:
        data = self._tokens.data(config.seed)
        self.model = build_retrieval_model(config, data).to(self.device)
        return data

    def _evaluated(self, split: Split) -> tuple[Encode, Tensor]:
        """The corpus is encoded once for a validation and the test that may follow it."""
        if split == "test" and self._evaluated_last is not None:
            found, self._evaluated_last = self._evaluated_last, None
            return found
        self._evaluated_last = super()._evaluated(split)
        return self._evaluated_last


class CachedRankingTask(TokenTask):
    """The same with `CachedMultipleNegativesRankingLoss` of sentence-transformers (GradCache).

    Args:
        config: The run; β is the scale of the loss.
        tokens: The texts.
        mini_batch: Texts that are encoded at a time.
    """

    def __init__(self, config: RunConfig, tokens: Tokens, mini_batch: int) -> None:
        from sentence_transformers.sentence_transformer.losses import (
            CachedMultipleNegativesRankingLoss,
        )

        super().__init__(config, tokens)
        assert config.negatives is not None
        self._ranking: Any = CachedMultipleNegativesRankingLoss(
            self.model.encoder, scale=config.negatives.beta, mini_batch_size=mini_batch
        )
        self._ranking.model = _Embedder(self)  # a backward pass is outside `autocast`

    def loss(self, batch: PairBatch) -> Tensor:
        """The loss of the batch; its gradients are made when it is propagated back."""
        items = self.data.items.take(batch.items)[ITEM_TOKENS]
        columns = [_column(batch.queries[QUERY_TOKENS]), _column(items)]
        found: Tensor = self._ranking(columns, torch.zeros(0))
        return found


class _Embedder(nn.Module):
    """The encoder of a task in the precision of its run, as the library's losses call it."""

    def __init__(self, task: TokenTask) -> None:
        super().__init__()
        self.inner: Any = task.model.encoder
        self._autocast = task.autocast

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        with self._autocast():
            found = self.inner(dict(features))
        return {"sentence_embedding": found["sentence_embedding"].float()}


def _column(ids: Tensor) -> dict[str, Tensor]:
    """Tokens padded with −1 as the library has them, as wide as the longest of them."""
    ids = trimmed(ids)
    is_token = ids >= 0
    return {"input_ids": ids.masked_fill(~is_token, 0), "attention_mask": is_token.long()}


class TimedLoop(Loop):
    """A loop that knows how long it evaluated, and tests nothing in a trial.

    Args:
        task: Model and data.
        config: The run.
        is_trial: Whether nothing is tested.
    """

    def __init__(self, task: TokenTask, config: RunConfig, is_trial: bool) -> None:
        super().__init__(task, config, build_optimizer(config, task.trained))
        if self.device.type == "cuda":
            for group in self.optimizers[0].param_groups:
                group["fused"] = True  # the same steps in fewer launches
        self.evaluating_s = 0.0
        self._is_trial = is_trial

    def _evaluate(self, split: Split) -> Metrics:
        if self._is_trial and split == "test":
            return {}
        wait(self.device)
        started = time.perf_counter()
        found = super()._evaluate(split)
        self.evaluating_s += time.perf_counter() - started
        return found


def wait(device: torch.device) -> None:
    """Wait for what was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
