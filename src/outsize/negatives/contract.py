"""What a way to train queries against items promises, whichever items those are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from outsize.bounds import MAX_RATE, require_at_least, require_between
from outsize.errors import ConfigError
from outsize.kernels.ragged import Ragged
from outsize.negatives.evaluation_mode import evaluation_mode
from outsize.negatives.temperature import Temperature
from outsize.ranks.collectives import check_stop_together

EncodeItems = Callable[[Mapping[str, Tensor]], Tensor]
ENCODED_AT_ONCE = 8192  # items that are encoded between two looks whether to stop


@dataclass(frozen=True)
class ItemSource:
    """All items there are, by key, and how they are encoded.

    Attributes:
        num_items: Keys are 0 … num_items − 1.
        dim: Width of an embedding.
        features_of: Keys `(n,)` → what those items are encoded from, `(n, …)` by name.
        encode: Such features → embeddings `(n, dim)`, with gradients.
        counts: How often each item is a positive in training, where that is known.
    """

    num_items: int
    dim: int
    features_of: Callable[[Tensor], Mapping[str, Tensor]]
    encode: EncodeItems
    counts: Int64[Tensor, " num_items"] | None = None

    @torch.no_grad()
    def encode_keys(
        self, keys: Int64[Tensor, " n"], chunk_size: int | None = None, most: int | None = None
    ) -> Float32[Tensor, "n dim"]:
        """Embeddings of items in evaluation mode, without gradients, a chunk at a time.

        Where a stop is asked for, `StopRequested` is raised between chunks. Ranks enter together.

        Args:
            keys: Of the items.
            chunk_size: How many to encode at once; `ENCODED_AT_ONCE` by default.
            most: The most items that any rank encodes in this call, by default as many as here.
                Where rows live on several ranks, encoding is a meeting of all, so all encode as
                many chunks, the last ones without items.
        """
        size = chunk_size or ENCODED_AT_ONCE
        parts: list[Tensor] = []
        with evaluation_mode(self.encode):
            for start in range(0, max(1, len(keys), most or 0), size):
                if start:
                    check_stop_together(keys.device)
                chunk = keys[start : start + size]
                parts.append(self.encode(self.features_of(chunk)).float())
        return torch.cat(parts)


@dataclass(frozen=True)
class LossReport:
    """The loss of one batch, and what its commit needs.

    Attributes:
        loss: What to minimise: the mean over the batch.
        losses: −log p⁺ of each query among what it was compared with, without a gradient.
        metrics: What to log of it.
    """

    loss: Float32[Tensor, ""]
    losses: Float32[Tensor, " batch"]
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


def cross_entropies(
    positive: Float32[Tensor, " batch"], others: Float32[Tensor, "batch n"]
) -> Float32[Tensor, " batch"]:
    """−log p of each query's positive among itself and the others, given the logits of all."""
    return torch.cat((positive.unsqueeze(1), others), dim=1).logsumexp(dim=1) - positive


def report_of(
    losses: Float32[Tensor, " batch"],
    beta: Float32[Tensor, ""],
    loss: Float32[Tensor, ""] | None = None,
) -> LossReport:
    """The report of losses that have gradients; `loss` is minimised where it is not their mean."""
    kept = losses.detach()
    metrics = {"p_positive": torch.exp(-kept).mean(), "beta": beta.detach()}
    return LossReport(losses.mean() if loss is None else loss, kept, metrics)


class NegativesLoss(nn.Module, ABC):
    """Trains queries against items. A forward pass changes nothing: `begin` and `commit` do.

    Forward passes with gradients may count draws, so that each has its own. One without gradients,
    as in an evaluation, does not: training draws as if it had not been.

    Attributes:
        temperature: The inverse temperature β.
    """

    temperature: Temperature

    def begin(self) -> None:
        """Get ready for the first step, such as by encoding all items; by default nothing."""
        return

    @abstractmethod
    def forward(
        self,
        queries: Float[Tensor, "batch dim"],
        features: Mapping[str, Tensor],
        keys: Int64[Tensor, " batch"],
        known: Int64[Tensor, "batch n"] | Ragged | None = None,
    ) -> LossReport:
        """The loss of a batch.

        Args:
            queries: Encoded queries, with gradients.
            features: What the queries' positives are encoded from, `(batch, …)` by name.
            keys: Keys of the positives.
            known: Keys of other items that are right for a query: they never count as its
                negatives. Lists of any length, or a matrix with −1 for nothing.
        """

    def commit(self, report: LossReport) -> None:
        """Keep what a step has made, once its weights are updated; by default nothing.

        Ends with `refresh`, which may be stopped; the step's part is kept by then.
        """
        return

    def refresh(self) -> None:
        """Encode anew what is due after the last commit; by default nothing.

        May be called again where it was stopped.
        """
        return

    def latest_metrics(self) -> dict[str, float]:
        """What there is to log after a commit, besides the report's; by default nothing."""
        return {}


@dataclass(frozen=True)
class NegativesConfig(ABC):
    """How a run finds its negatives.

    Attributes:
        beta: The inverse temperature β.
        learn_beta: Train it, starting there.
        chunk_size: Encode so many queries or items at a time, and once more in the backward pass:
            a batch of any size in the memory of a chunk, with the same gradients (GradCache).
    """

    beta: float = 20.0
    learn_beta: bool = False
    chunk_size: int | None = None

    def __post_init__(self) -> None:
        require_at_least(self, 1, "chunk_size")
        if not self.beta > 0:
            raise ConfigError(f"beta must be > 0, but got {self.beta}")
        require_between(self, 1e-6, MAX_RATE, "beta")

    @abstractmethod
    def build(self, source: ItemSource, seed: int) -> NegativesLoss:
        """Make the loss."""

    def items_per_step(self, batch_size: int, num_items: int) -> int:
        """Items whose vectors a step holds besides those of its batch, to estimate its memory.

        Args:
            batch_size: Queries of a rank.
            num_items: Items of the corpus.
        """
        return 0
