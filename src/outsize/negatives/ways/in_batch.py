"""In-batch negatives: the positives of the batch's other queries, which cost no encoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from outsize.kernels.ragged import Ragged
from outsize.negatives.cache.key_index import is_listed, is_repeated
from outsize.negatives.contract import (
    ItemSource,
    LossReport,
    NegativesConfig,
    NegativesLoss,
    cross_entropies,
    make_report,
)
from outsize.negatives.inclusion import log_prob_drawn
from outsize.negatives.temperature import Temperature
from outsize.ranks.collectives import ProcessRanks, RankGroup
from outsize.ranks.gathering import gather_keys, gather_lines, gather_lists


def in_batch_logits(
    queries: Float[Tensor, "batch dim"],
    items: Float[Tensor, "n dim"],
    beta: float | Float[Tensor, ""],
    keys: Int64[Tensor, " batch"],
    known: Int64[Tensor, "batch k"] | Ragged | None = None,
    item_keys: Int64[Tensor, " n"] | None = None,
) -> Float32[Tensor, "batch n"]:
    """Logits of each query for the in-batch negatives, −∞ for masked ones.

    Masked are the query's own positive, its known positives, and repeated items: of several with
    the same key, only the first counts.

    Args:
        queries: Encoded queries.
        items: Encoded positives, of these queries or of all ranks.
        beta: The inverse temperature.
        keys: Keys of the positives of these queries.
        known: Keys of the queries' other known positives, lists or a matrix padded with −1.
        item_keys: Keys of `items`; `keys` by default.
    """
    item_keys = keys if item_keys is None else item_keys
    masked = _is_positive(keys, known, item_keys) | is_repeated(item_keys.unsqueeze(0))
    logits = beta * (queries.float() @ items.float().T)
    return logits.masked_fill(masked, -torch.inf)


def items_to_queries(
    queries: Float[Tensor, "n dim"],
    items: Float[Tensor, "batch dim"],
    beta: float | Float[Tensor, ""],
    keys: Int64[Tensor, " n"],
    known: Int64[Tensor, "n k"] | Ragged | None = None,
    first: int = 0,
) -> Float32[Tensor, " batch"]:
    """The other direction: cross-entropy of each item's query over the queries of the batch.

    Other queries that have the item as a positive are masked.

    Args:
        queries: Encoded queries, of these items or of all ranks.
        items: Encoded positives.
        beta: The inverse temperature.
        keys: Keys of the queries' positives.
        known: Keys of the queries' other known positives.
        first: The position of the first item's query in `queries`.
    """
    own = keys[first : first + len(items)]
    logits = beta * (items.float() @ queries.float().T)
    masked = _is_positive(keys, known, own).T.clone()
    masked.diagonal(first).fill_(False)
    logits = logits.masked_fill(masked, -torch.inf)
    return logits.logsumexp(dim=1) - logits.diagonal(first)


def symmetric_loss(
    loss: Float32[Tensor, ""],
    queries: Float[Tensor, "batch dim"],
    items: Float[Tensor, "batch dim"],
    beta: float | Float[Tensor, ""],
    keys: Int64[Tensor, " batch"],
    known: Int64[Tensor, "batch k"] | Ragged | None = None,
    ranks: RankGroup | None = None,
) -> Float32[Tensor, ""]:
    """Average a loss with that of the other direction: items against the queries of all ranks."""
    all_keys, first = gather_keys(keys, ranks)
    lists = Ragged.of(keys.new_empty(len(keys), 0) if known is None else known)
    others = gather_lines(queries, ranks)
    losses = items_to_queries(others, items, beta, all_keys, gather_lists(lists, ranks), first)
    return (loss + losses.mean()) / 2


class InBatchLoss(NegativesLoss):
    """Cross-entropy of each positive against the positives of the batch.

    Popular items occur in many batches, so they are negatives more often than in a softmax over all
    items. The logQ correction weights each item of the batch by 1/π, where

        π = 1 − (1 − q)^(B − 1)

    is the probability that one of the other queries has the item, q its share of all positives, and
    B the number of pairs in this step over all `ranks`. An item counts once, however often it is in
    the batch. So the sum is an unbiased estimate of the sum over all items that are not masked.
    Positives are modelled as independent draws: in an epoch over n pairs in random order, π is too
    small by a relative error of at most B/(2n).

    Args:
        source: The corpus.
        temperature: The inverse temperature β.
        symmetric: Average with the loss of each positive against the queries of the batch.
        log_q: Apply the logQ correction, with the counts of the source.
        ranks: The ranks whose batches are joined; this one alone by default.
    """

    def __init__(
        self,
        source: ItemSource,
        temperature: Temperature,
        symmetric: bool = False,
        log_q: bool = False,
        ranks: RankGroup | None = None,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self._ranks = ranks
        self._source = source
        self._symmetric = symmetric
        self._shares: Tensor | None = None
        if log_q:
            counts = source.require_counts()
            self._shares = counts.double() / counts.sum()

    def forward(  # noqa: D102
        self,
        queries: Float[Tensor, "batch dim"],
        features: Mapping[str, Tensor],
        keys: Int64[Tensor, " batch"],
        known: Int64[Tensor, "batch n"] | Ragged | None = None,
    ) -> LossReport:
        beta = self.temperature()
        items = self._source.encode(features)
        all_items, (all_keys, _) = gather_lines(items, self._ranks), gather_keys(keys, self._ranks)
        logits = in_batch_logits(queries, all_items, beta, keys, known, all_keys)
        if self._shares is not None:
            self._shares = self._shares.to(keys.device)
            num_others = max(1, len(all_keys) - 1)  # a single pair has only masked logits
            logits = logits - log_prob_drawn(self._shares[all_keys], num_others).float()
        positive = beta * (queries.float() * items.float()).sum(dim=1)
        losses = cross_entropies(positive, logits)
        loss = losses.mean()
        if self._symmetric:
            loss = symmetric_loss(loss, queries, items, beta, keys, known, self._ranks)
        return make_report(losses, beta, loss)


@dataclass(frozen=True)
class InBatchConfig(NegativesConfig):
    """In-batch negatives: the positives of the batch's other queries.

    Attributes:
        symmetric: Average with the loss of each positive against the queries of the batch.
        log_q: Apply the logQ correction for popularity.
        across_ranks: Join the batches of all ranks, as in one process with one large batch.
    """

    symmetric: bool = False
    log_q: bool = False
    across_ranks: bool = True

    def build(self, source: ItemSource, seed: int) -> InBatchLoss:  # noqa: D102
        temperature = Temperature(self.beta, self.learn_beta)
        ranks = ProcessRanks() if self.across_ranks else None
        return InBatchLoss(source, temperature, self.symmetric, self.log_q, ranks)


def _is_positive(
    keys: Int64[Tensor, " batch"],
    known: Int64[Tensor, "batch k"] | Ragged | None,
    item_keys: Int64[Tensor, " n"],
) -> Bool[Tensor, "batch n"]:
    """Whether item j is a positive of query i: its own, or a known one."""
    is_own = keys.unsqueeze(1) == item_keys.unsqueeze(0)
    return is_own if known is None else is_own | is_listed(Ragged.of(known), item_keys)
