"""Exact softmax: all items, each encoded with gradients. The other kinds approximate it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.kernels.ragged import Ragged
from outsize.negatives.contract import (
    ItemSource,
    LossReport,
    NegativesConfig,
    NegativesLoss,
    make_report,
)
from outsize.negatives.temperature import Temperature


class ExactLoss(NegativesLoss):
    """Cross-entropy of each positive over the whole corpus, which is encoded in every step.

    Args:
        source: The corpus.
        temperature: The inverse temperature β.
    """

    def __init__(self, source: ItemSource, temperature: Temperature) -> None:
        super().__init__()
        self.temperature = temperature
        self._source = source

    def forward(  # noqa: D102
        self,
        queries: Float[Tensor, "batch dim"],
        features: Mapping[str, Tensor],
        keys: Int64[Tensor, " batch"],
        known: Int64[Tensor, "batch n"] | Ragged | None = None,
    ) -> LossReport:
        beta = self.temperature()
        everything = torch.arange(self._source.num_items, device=keys.device)
        items = self._source.encode(self._source.features_of(everything)).float()
        logits = beta * (queries.float() @ items.T)
        positive = logits.gather(1, keys.unsqueeze(1)).squeeze(1)
        if known is not None:
            lists, num_items = Ragged.of(known), self._source.num_items
            query = lists.lines()
            is_other = (lists.values != keys[query]) & (lists.values >= 0)  # never its own positive
            place = query * (num_items + 1) + torch.where(is_other, lists.values, num_items)
            masked = torch.zeros(len(keys), num_items + 1, dtype=torch.bool, device=keys.device)
            masked.view(-1)[place] = True
            logits = logits.masked_fill(masked[:, :-1], -torch.inf)
        return make_report(logits.logsumexp(dim=1) - positive, beta)


@dataclass(frozen=True)
class ExactConfig(NegativesConfig):
    """The whole corpus, re-encoded in every step."""

    def build(self, source: ItemSource, seed: int) -> ExactLoss:  # noqa: D102
        return ExactLoss(source, Temperature(self.beta, self.learn_beta))
