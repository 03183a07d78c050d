"""The items of a batch against each other: the negatives that cost nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from outsize.errors import ConfigError
from outsize.kernels.ragged import Ragged
from outsize.negatives.cache.key_index import places_by_table
from outsize.negatives.contract import (
    ItemSource,
    LossReport,
    NegativesConfig,
    NegativesLoss,
    cross_entropies,
    report_of,
)
from outsize.negatives.inclusion import log_drawn
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
    """Each query's logits of the other queries' positives: −∞ where one must not count for it.

    Args:
        queries: Encoded queries.
        items: Positives, encoded: those of these queries, or of all ranks'.
        beta: The inverse temperature.
        keys: Keys of these queries' positives. A query's own never counts, and of several items
            with one key the first does.
        known: Keys of a query's other positives, lists or a matrix with −1 for nothing; they do
            not count either.
        item_keys: Keys of `items`, where these are not of these queries alone.
    """
    item_keys = keys if item_keys is None else item_keys
    masked = _are_right(keys, known, item_keys) | _is_repeated(item_keys).unsqueeze(0)
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
    """The other direction: cross-entropy of each item's query among those it is not right for.

    Args:
        queries: Encoded queries: those of these items, or of all ranks'.
        items: Positives, encoded.
        beta: The inverse temperature.
        keys: Keys of the queries' positives.
        known: Keys of the queries' other positives.
        first: Where the queries of these items begin.
    """
    own = keys[first : first + len(items)]
    logits = beta * (items.float() @ queries.float().T)
    masked = _are_right(keys, known, own).T.clone()
    masked.diagonal(first).fill_(False)
    logits = logits.masked_fill(masked, -torch.inf)
    return logits.logsumexp(dim=1) - logits.diagonal(first)


def both_ways(
    loss: Float32[Tensor, ""],
    queries: Float[Tensor, "batch dim"],
    items: Float[Tensor, "batch dim"],
    beta: float | Float[Tensor, ""],
    keys: Int64[Tensor, " batch"],
    known: Int64[Tensor, "batch k"] | Ragged | None = None,
    ranks: RankGroup | None = None,
) -> Float32[Tensor, ""]:
    """The mean of a loss and that of items against the queries of the batch, on all ranks."""
    all_keys, first = gather_keys(keys, ranks)
    lists = Ragged.of(keys.new_empty(len(keys), 0) if known is None else known)
    others = gather_lines(queries, ranks)
    losses = items_to_queries(others, items, beta, all_keys, gather_lists(lists, ranks), first)
    return (loss + losses.mean()) / 2


class InBatchLoss(NegativesLoss):
    """Cross-entropy of each positive among the positives of the batch.

    Popular items are often in a batch, and so are pushed away more often than the softmax over all
    items would. With their counts, each item of the batch counts 1/π times (logQ), where

        π = 1 − (1 − q)^(B − 1)

    is the chance that one of the other queries has it, q its share of all positives and B the
    pairs of this step on all ranks that are taken together. An item counts once however often it is
    in the batch, so that the sum is an estimate without bias of that over all items, less what is
    masked. Positives are taken for independent draws: in an epoch that goes through n pairs in
    random order, π is too small by a share of B/(2n) at most.

    Args:
        source: How items are encoded.
        temperature: β.
        symmetric: Also compare each positive's query with the batch's other queries.
        log_q: Correct for popularity by the source's counts.
        ranks: Those whose batches are taken together; by default this one alone.
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
            if source.counts is None:
                raise ConfigError("log_q needs to know how often items are positives")
            self._shares = source.counts.double() / source.counts.sum()

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
            num_others = max(1, len(all_keys) - 1)  # without others, all is masked
            logits = logits - log_drawn(self._shares[all_keys], num_others).float()
        positive = beta * (queries.float() * items.float()).sum(dim=1)
        losses = cross_entropies(positive, logits)
        loss = losses.mean()
        if self._symmetric:
            loss = both_ways(loss, queries, items, beta, keys, known, self._ranks)
        return report_of(losses, beta, loss)


@dataclass(frozen=True)
class InBatchConfig(NegativesConfig):
    """The batch's other positives.

    Attributes:
        symmetric: Also compare each positive's query with the batch's other queries.
        log_q: Correct for popularity.
        across_ranks: Take the batches of all ranks together, as one process would.
    """

    symmetric: bool = False
    log_q: bool = False
    across_ranks: bool = True

    def build(self, source: ItemSource, seed: int) -> InBatchLoss:  # noqa: D102
        temperature = Temperature(self.beta, self.learn_beta)
        ranks = ProcessRanks() if self.across_ranks else None
        return InBatchLoss(source, temperature, self.symmetric, self.log_q, ranks)


def _are_right(
    keys: Int64[Tensor, " batch"],
    known: Int64[Tensor, "batch k"] | Ragged | None,
    item_keys: Int64[Tensor, " n"],
) -> Bool[Tensor, "batch n"]:
    """Whether item j is right for query i: its own, or known to be."""
    right = keys.unsqueeze(1) == item_keys.unsqueeze(0)
    lists = None if known is None else Ragged.of(known)
    if lists is None or not len(lists.values) or not len(item_keys):
        return right
    # Each known key is looked up among the items' keys, which are fewer than all pairs of both.
    distinct, number = torch.unique(item_keys, return_inverse=True)
    found = None if keys.is_cuda else places_by_table(lists.values, distinct)
    if found is None:
        found = torch.searchsorted(distinct, lists.values).clamp_max_(len(distinct) - 1)
        found = torch.where(distinct[found] == lists.values, found, -1)
    is_known = torch.zeros(len(keys), len(distinct) + 1, dtype=torch.bool, device=keys.device)
    found = torch.where(found >= 0, found, len(distinct))
    is_known.view(-1)[lists.lines() * (len(distinct) + 1) + found] = True
    return right | is_known[:, number]


def _is_repeated(keys: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Whether a key stands further to the left as well."""
    ordered, places = torch.sort(keys, stable=True)
    repeated = torch.zeros_like(ordered, dtype=torch.bool)
    repeated[1:] = ordered[1:] == ordered[:-1]
    return torch.zeros_like(repeated).scatter_(0, places, repeated)
