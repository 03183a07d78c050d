"""The items of a batch against each other: the negatives that cost nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from outsize.errors import ConfigError
from outsize.negatives.contract import (
    ItemSource,
    LossReport,
    NegativesConfig,
    NegativesLoss,
    report_of,
)
from outsize.negatives.temperature import Temperature


def in_batch_logits(
    queries: Float[Tensor, "batch dim"],
    items: Float[Tensor, "batch dim"],
    beta: float | Float[Tensor, ""],
    keys: Int64[Tensor, " batch"],
    known: Int64[Tensor, "batch n"] | None = None,
) -> Float32[Tensor, "batch batch"]:
    """Each query's logits of the other queries' positives: −∞ where one must not count for it.

    Args:
        queries: Encoded queries.
        items: Their positives, encoded.
        beta: The inverse temperature.
        keys: Keys of the positives. A query's own never counts, and of several items with one key
            the first does.
        known: Keys of a query's other positives, −1 for nothing; they do not count either.
    """
    masked = _are_right(keys, known) | _is_repeated(keys).unsqueeze(0)
    logits = beta * (queries.float() @ items.float().T)
    return logits.masked_fill(masked, -torch.inf)


def items_to_queries(
    queries: Float[Tensor, "batch dim"],
    items: Float[Tensor, "batch dim"],
    beta: float | Float[Tensor, ""],
    keys: Int64[Tensor, " batch"],
    known: Int64[Tensor, "batch n"] | None = None,
) -> Float32[Tensor, " batch"]:
    """The other direction: cross-entropy of each item's query among those it is not right for."""
    logits = beta * (items.float() @ queries.float().T)
    masked = _are_right(keys, known).T.clone().fill_diagonal_(False)
    logits = logits.masked_fill(masked, -torch.inf)
    return logits.logsumexp(dim=1) - logits.diagonal()


class InBatchLoss(NegativesLoss):
    """Cross-entropy of each positive among the positives of the batch.

    Popular items are often in a batch, and so are pushed away more often than the softmax over all
    items would. With their counts, each counts 1/((B − 1)·q) times, q its share of all positives:
    the estimate of the whole softmax (logQ).

    Args:
        source: How items are encoded.
        temperature: β.
        symmetric: Also compare each positive's query with the batch's other queries.
        log_q: Correct for popularity by the source's counts.
    """

    def __init__(
        self,
        source: ItemSource,
        temperature: Temperature,
        symmetric: bool = False,
        log_q: bool = False,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self._source = source
        self._symmetric = symmetric
        self._log_share: Tensor | None = None
        if log_q:
            if source.counts is None:
                raise ConfigError("log_q needs to know how often items are positives")
            self._log_share = torch.log(source.counts / source.counts.sum()).float()

    def forward(  # noqa: D102
        self,
        queries: Float[Tensor, "batch dim"],
        features: Mapping[str, Tensor],
        keys: Int64[Tensor, " batch"],
        known: Int64[Tensor, "batch n"] | None = None,
    ) -> LossReport:
        beta = self.temperature()
        items = self._source.encode(features)
        logits = in_batch_logits(queries, items, beta, keys, known)
        if self._log_share is not None:
            self._log_share = self._log_share.to(keys.device)
            logits = logits - self._log_share[keys] - torch.tensor(float(len(keys) - 1)).log()
        positive = beta * (queries.float() * items.float()).sum(dim=1, keepdim=True)
        losses = torch.cat((positive, logits), dim=1).logsumexp(dim=1) - positive.squeeze(1)
        loss = losses.mean()
        if self._symmetric:
            loss = (loss + items_to_queries(queries, items, beta, keys, known).mean()) / 2
        return report_of(losses, beta, loss)


@dataclass(frozen=True)
class InBatchConfig(NegativesConfig):
    """The batch's other positives.

    Attributes:
        symmetric: Also compare each positive's query with the batch's other queries.
        log_q: Correct for popularity.
    """

    symmetric: bool = False
    log_q: bool = False

    def build(self, source: ItemSource, seed: int) -> InBatchLoss:  # noqa: D102
        temperature = Temperature(self.beta, self.learn_beta)
        return InBatchLoss(source, temperature, self.symmetric, self.log_q)


def _are_right(
    keys: Int64[Tensor, " batch"], known: Int64[Tensor, "batch n"] | None
) -> Bool[Tensor, "batch batch"]:
    """Whether item j is right for query i: its own, or known to be."""
    right = keys.unsqueeze(1) == keys.unsqueeze(0)
    if known is None or not known.shape[1]:
        return right
    # Each known key is looked up among the batch's keys, which are fewer than all pairs of both.
    ordered = keys.sort().values
    place = torch.searchsorted(ordered, known.contiguous()).clamp_max_(len(keys) - 1)
    place = torch.where(ordered[place] == known, place, len(keys))
    is_known = torch.zeros(len(keys), len(keys) + 1, dtype=torch.bool, device=keys.device)
    is_known.scatter_(1, place, True)
    return right | is_known[:, torch.searchsorted(ordered, keys)]


def _is_repeated(keys: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Whether a key stands further to the left as well."""
    ordered, places = torch.sort(keys, stable=True)
    repeated = torch.zeros_like(ordered, dtype=torch.bool)
    repeated[1:] = ordered[1:] == ordered[:-1]
    return torch.zeros_like(repeated).scatter_(0, places, repeated)
