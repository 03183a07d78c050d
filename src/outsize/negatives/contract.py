"""The contract of a loss over negatives, and of the items it may encode.

A loss gets all items as an `ItemSource` and decides which of them each query is compared with. How
it may encode them matters with several ranks: see `ItemSource` and `NegativesLoss`.
"""

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
ENCODED_AT_ONCE = 8192  # items per chunk without gradients, at most; stops are between chunks
_FEWEST_AT_ONCE = 256


def encoded_at_once(num_with_gradients: int) -> int:
    """How many items to encode at a time without gradients.

    As many as a step encodes with gradients, which takes more memory per item; but at least 256,
    since a call has a price of its own, and at most `ENCODED_AT_ONCE`.

    Args:
        num_with_gradients: Items that a training step encodes at a time.
    """
    return min(ENCODED_AT_ONCE, max(_FEWEST_AT_ONCE, num_with_gradients))


@dataclass(frozen=True)
class ItemSource:
    """The corpus: all items by key, and how they are encoded.

    Who builds a source promises of `encode`:

    - With gradients enabled it runs in the model's own mode, and its result has gradients. With
      several ranks it is a forward pass of the data-parallel wrapper (DDP) around everything that
      is trained. The backward pass that follows averages all gradients over ranks, also those that
      reach the weights through the queries and β.
    - With gradients disabled it encodes without the wrapper. Where embedding rows live on several
      ranks, reading them is still collective: all ranks must call it equally often.

    `NegativesLoss` says what a loss must do in return.

    Attributes:
        num_items: Size of the corpus. Keys are 0 … num_items − 1.
        dim: Width of an embedding.
        features_of: Keys `(n,)` → the encoder's inputs for these items, `(n, …)` by name.
        encode: Such features → embeddings `(n, dim)`.
        counts: How often each item is a positive in training, if known.
        num_at_once: Items that are encoded at a time without gradients; `ENCODED_AT_ONCE` by
            default. The same on all ranks.
    """

    num_items: int
    dim: int
    features_of: Callable[[Tensor], Mapping[str, Tensor]]
    encode: EncodeItems
    counts: Int64[Tensor, " num_items"] | None = None
    num_at_once: int | None = None

    def require_counts(self) -> Int64[Tensor, " num_items"]:
        """The counts, which the logQ correction needs; raises if there are none."""
        if self.counts is None:
            raise ConfigError("log_q needs ItemSource.counts: give them, or set log_q = false")
        return self.counts

    @torch.no_grad()
    def encode_keys(
        self, keys: Int64[Tensor, " n"], chunk_size: int | None = None, most: int | None = None
    ) -> Float32[Tensor, "n dim"]:
        """Encode items in chunks, in evaluation mode and without gradients.

        All ranks call it together. If a stop is requested, it raises `StopRequested` between
        chunks.

        Args:
            keys: Keys of the items.
            chunk_size: Items per chunk; `num_at_once` by default.
            most: The largest number of items that any rank encodes in this call; `len(keys)` by
                default. All ranks encode the same number of chunks, empty ones included, because
                `encode` is collective where rows live on several ranks.
        """
        size = chunk_size or self.num_at_once or ENCODED_AT_ONCE
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
    """The loss of one batch, and what `commit` needs of it.

    Attributes:
        loss: The value to minimise: the mean over the batch.
        losses: −log p⁺ per query, over its positive and its negatives, without gradients.
        metrics: Values to log.
    """

    loss: Float32[Tensor, ""]
    losses: Float32[Tensor, " batch"]
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


def cross_entropies(
    positive: Float32[Tensor, " batch"], others: Float32[Tensor, "batch n"]
) -> Float32[Tensor, " batch"]:
    """Cross-entropy per query: −log p of its positive among the positive and the others.

    Args:
        positive: The logit of each query's positive.
        others: The logits of its negatives, −∞ for masked ones.
    """
    return torch.cat((positive.unsqueeze(1), others), dim=1).logsumexp(dim=1) - positive


def make_report(
    losses: Float32[Tensor, " batch"],
    beta: Float32[Tensor, ""],
    loss: Float32[Tensor, ""] | None = None,
) -> LossReport:
    """Build the report of per-query losses with gradients.

    Args:
        losses: The loss of each query.
        beta: The inverse temperature, to log.
        loss: The value to minimise, where it is not the mean of `losses`.
    """
    values = losses.detach()
    metrics = {"p_positive": torch.exp(-values).mean(), "beta": beta.detach()}
    return LossReport(losses.mean() if loss is None else loss, values, metrics)


class NegativesLoss(nn.Module, ABC):
    """A loss that trains queries against items.

    `forward` changes no state but the count of draws; `begin`, `commit` and `refresh` do. A forward
    pass without gradients, as in an evaluation, counts no draws: later ones are as if it had not
    happened.

    For gradients to be averaged correctly over ranks, every loss keeps three rules:

    - **`forward` calls `ItemSource.encode` exactly once**, with all items of the step that need a
      gradient in that one call: positives, drawn items and hard negatives together. The call is a
      forward pass of DDP, which supports one per backward pass, and averages nothing without one.
    - **All ranks call `forward` equally often**, each with at least one pair, since DDP's backward
      pass waits for every rank. So whether `encode` is called must not depend on the batch.
    - **Everything else is encoded without gradients**, in evaluation mode and outside `forward`:
      by `ItemSource.encode_keys`, or by `encode` under `torch.no_grad()` and `evaluation_mode`.
      That is how caches are filled and swept, and how indexes are built.

    Attributes:
        temperature: The inverse temperature β.
    """

    temperature: Temperature

    def begin(self) -> None:
        """Prepare the first step, for example by encoding all items. Does nothing by default."""
        return

    def draw_anew(self) -> None:
        """Let the next forward pass draw other items though there was no `commit`.

        Does nothing by default, which is right where items are not drawn, or draws are counted.
        """
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
            features: The encoder's inputs for the positives, `(batch, …)` by name.
            keys: Keys of the positives.
            known: Keys of the query's other known positives. They are masked: never its negatives.
                Lists of any length, or a matrix padded with −1.
        """

    def commit(self, report: LossReport) -> None:
        """Record a step after the optimizer's step. Does nothing by default.

        It ends with `refresh`. If that is stopped, the rest of the commit is already done.
        """
        return

    def refresh(self) -> None:
        """Re-encode what is due after the last commit. Does nothing by default.

        If it was stopped, it can be called again.
        """
        return

    def latest_metrics(self) -> dict[str, float]:
        """Values to log after a commit, besides those of the report. Empty by default."""
        return {}


@dataclass(frozen=True)
class NegativesConfig(ABC):
    """How a run chooses negatives.

    Attributes:
        beta: The inverse temperature β.
        learn_beta: Train β, starting from `beta`.
        chunk_size: Queries or items per chunk. Each chunk is encoded again in the backward pass, so
            that a large batch needs the memory of one chunk, with the same gradients (GradCache).
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
        """Build the loss."""

    def items_per_step(self, batch_size: int, num_items: int) -> int:
        """Item embeddings per step besides the batch's positives, to estimate memory.

        Args:
            batch_size: Queries per rank.
            num_items: Size of the corpus.
        """
        return 0
