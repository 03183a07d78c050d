"""Softmax over a few chosen items per query, all encoded with gradients."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.hashing import derive_seed
from outsize.kernels.ragged import Ragged
from outsize.negatives.cache.key_index import NO_KEY, is_among
from outsize.negatives.contract import (
    ItemSource,
    LossReport,
    NegativesLoss,
    cross_entropies,
    make_report,
)
from outsize.negatives.temperature import Temperature
from outsize.negatives.ways.in_batch import in_batch_logits


class SampledLoss(NegativesLoss):
    """Cross-entropy of each positive against k chosen items, and optionally the batch.

    Args:
        source: The corpus.
        temperature: The inverse temperature β.
        in_batch: Add in-batch negatives.
        seed: Seed of the choice.
        weight: How many items of the corpus each chosen item stands for.
    """

    def __init__(
        self,
        source: ItemSource,
        temperature: Temperature,
        in_batch: bool,
        seed: int,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self._source = source
        self._in_batch = in_batch
        self._seed = seed
        self._log_weight = math.log(weight)
        self.step = 0

    @abstractmethod
    def choose(
        self,
        queries: Float[Tensor, "batch dim"],
        keys: Int64[Tensor, " batch"],
        known: Ragged | None,
        generator: torch.Generator,
    ) -> Int64[Tensor, "batch k"]:
        """Choose the keys of k negatives per query, −1 for none; no known positive of the query."""

    def forward(  # noqa: D102
        self,
        queries: Float[Tensor, "batch dim"],
        features: Mapping[str, Tensor],
        keys: Int64[Tensor, " batch"],
        known: Int64[Tensor, "batch n"] | Ragged | None = None,
    ) -> LossReport:
        beta = self.temperature()
        generator = torch.Generator(queries.device)
        generator.manual_seed(derive_seed(self._seed, "choose", self.step))
        lists = None if known is None else Ragged.of(known)
        chosen = self.choose(queries.detach().float(), keys, lists, generator)
        if self._in_batch:  # items of the batch count there already
            chosen = torch.where(is_among(chosen, keys), NO_KEY, chosen)
        both = torch.cat((keys, chosen.clamp_min(0).flatten()))
        distinct, place = torch.unique(both, return_inverse=True)
        encoded = self._source.encode(self._source.features_of(distinct)).float()[place]
        own, others = encoded[: len(keys)], encoded[len(keys) :].unflatten(0, chosen.shape)
        positive = beta * (queries.float() * own).sum(dim=1)
        logits = beta * torch.einsum("bd,bkd->bk", queries.float(), others) + self._log_weight
        parts = [logits.masked_fill(chosen < 0, -torch.inf)]
        if self._in_batch:
            parts.append(in_batch_logits(queries, own, beta, keys, known))
        return make_report(cross_entropies(positive, torch.cat(parts, dim=1)), beta)

    def commit(self, report: LossReport) -> None:
        """Advance the seed of the choice."""
        self.draw_anew()

    def draw_anew(self) -> None:  # noqa: D102
        self.step += 1

    def get_extra_state(self) -> Tensor:
        """The number of steps, and the seed."""
        return torch.tensor([self.step, self._seed])

    def set_extra_state(self, state: Tensor) -> None:
        """Set the number of steps, and the seed."""
        self.step, self._seed = state.tolist()
