"""A FIFO queue of recent positives, used as constants (MoCo, XBM): a memory bank.

Queued embeddings are never refreshed, so their age grows with the length of the queue. They get no
gradient: only the queries learn from them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.bounds import require_at_least
from outsize.kernels.ragged import Ragged
from outsize.negatives.batch_items import require_items
from outsize.negatives.cache.draw import HeldItems
from outsize.negatives.cache.negative_cache import NegativeCache
from outsize.negatives.cache.precision import PRECISIONS
from outsize.negatives.contract import ItemSource, LossReport, NegativesConfig, NegativesLoss
from outsize.negatives.estimators import cached_softmax
from outsize.negatives.inclusion import InclusionProbabilities, log_prob_drawn
from outsize.negatives.temperature import Temperature
from outsize.negatives.ways.in_batch import in_batch_logits
from outsize.registries import require_known


@dataclass(frozen=True)
class QueueReport(LossReport):
    """The loss of one batch against a queue.

    Attributes:
        keys: Keys of the positives of the batch.
        embeddings: Their fresh embeddings.
    """

    keys: Tensor = field(kw_only=True)
    embeddings: Tensor = field(kw_only=True)


class QueueLoss(NegativesLoss):
    """Cross-entropy of each positive against the queue and the batch.

    The logQ correction weights each of these items by 1/π, where π is the probability that the
    item is in the queue or a positive of another query of the batch.

    Args:
        cache: The queue, a cache without features.
        source: The corpus.
        temperature: The inverse temperature β.
        log_q: Apply the logQ correction, with the counts of the source.
    """

    def __init__(
        self,
        cache: NegativeCache,
        source: ItemSource,
        temperature: Temperature,
        log_q: bool = False,
    ) -> None:
        super().__init__()
        self.cache = cache
        self.temperature = temperature
        self._source = source
        self._inclusion = _QueuedOrInBatch(source, cache.num_items) if log_q else None

    def forward(  # noqa: D102
        self,
        queries: Float[Tensor, "batch dim"],
        features: Mapping[str, Tensor],
        keys: Int64[Tensor, " batch"],
        known: Int64[Tensor, "batch n"] | Ragged | None = None,
    ) -> QueueReport:
        require_items(HeldItems(torch.full_like(keys, -1), keys, features))
        beta = self.temperature()
        items = self._source.encode(features)
        extra = in_batch_logits(queries, items, beta, keys, known)
        if self._inclusion is not None:
            extra = extra - self._inclusion.log_probabilities(
                keys, self.cache.num_pushed, len(keys) - 1
            )
        # Without draws, the control variate is the exact gradient for constant items.
        draw = self.cache.sample(
            queries,
            0,
            beta,
            exclude=known,
            exclude_everywhere=keys,
            with_mean=True,
            advance=torch.is_grad_enabled(),
        )
        result = cached_softmax(
            queries, items, items[:, None][:, :0], draw, beta, "control-variate", extra
        )
        return QueueReport(
            result.loss,
            result.losses,
            {"p_positive": result.p_positive.mean(), "beta": beta.detach()},
            keys=keys,
            embeddings=items.detach(),
        )

    def commit(self, report: LossReport) -> None:
        """Push the positives of the batch."""
        assert isinstance(report, QueueReport)
        with self.cache.all_or_nothing():
            self.cache.commit()
            self._push(report.keys, report.embeddings)

    def _push(self, keys: Tensor, embeddings: Tensor) -> None:
        inclusion = self._inclusion
        if inclusion is None:
            self.cache.push({}, embeddings, keys)
            return
        was_steady = self.cache.num_pushed >= inclusion.steady_at
        weights = -inclusion.log_probabilities(keys, math.inf, len(keys) - 1)
        self.cache.push({}, embeddings, keys, weights)
        if not was_steady:
            num_pushed = self.cache.num_pushed
            self.cache.reweigh(
                lambda held: -inclusion.log_probabilities(held, num_pushed, len(keys) - 1)
            )

    def latest_metrics(self) -> dict[str, float]:
        """The mean age and the length of the queue."""
        ages = self.cache.ages().float()
        return {"age": float(ages.mean()), "held": float(len(ages))} if len(ages) else {"held": 0.0}


class _QueuedOrInBatch:
    """The probability that an item is in a queue of positives, or among other pairs of a batch.

    Args:
        source: The corpus, with counts.
        num_held: Length of the queue.
    """

    def __init__(self, source: ItemSource, num_held: int) -> None:
        counts = source.require_counts()
        self._queued = InclusionProbabilities(counts, num_held, "fifo")
        self._shares = counts.double() / counts.sum()
        self.steady_at = self._queued.steady_at

    def log_probabilities(
        self, keys: Int64[Tensor, " n"], num_pushed: float, num_others: int
    ) -> Float[Tensor, " n"]:
        """The log-probability of each item after so many pushes, beside so many other pairs."""
        self._shares = self._shares.to(keys.device)
        queued = self._queued.to(keys.device).log_probabilities(keys, num_pushed)
        # A single pair has only masked logits.
        drawn = log_prob_drawn(self._shares[keys], max(1, num_others)).float()
        absent = torch.log1p(-queued.exp().clamp(max=1.0)) + torch.log1p(-drawn.exp())
        return torch.log(-torch.expm1(absent))


@dataclass(frozen=True)
class QueueConfig(NegativesConfig):
    """A FIFO queue (memory bank) of the embeddings of recent positives.

    Attributes:
        num_items: Length of the queue.
        precision: How embeddings are stored: "float32", "bfloat16" or "int8".
        log_q: Apply the logQ correction for popularity.
    """

    num_items: int = 65_536
    precision: str = "bfloat16"
    log_q: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "num_items")
        require_known("precision", self.precision, PRECISIONS)

    def build(self, source: ItemSource, seed: int) -> QueueLoss:  # noqa: D102
        size = min(self.num_items, source.num_items)
        cache = NegativeCache(size, source.dim, precision=self.precision, seed=seed)
        return QueueLoss(cache, source, Temperature(self.beta, self.learn_beta), self.log_q)
