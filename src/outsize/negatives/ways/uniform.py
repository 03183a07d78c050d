"""Sampled softmax: k negatives per query, drawn uniformly from the corpus.

Each of them has weight num_items / k.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.bounds import require_at_least
from outsize.kernels.ragged import Ragged
from outsize.negatives.contract import ItemSource, NegativesConfig
from outsize.negatives.temperature import Temperature
from outsize.negatives.ways.sampled_loss import SampledLoss


class UniformLoss(SampledLoss):
    """Sampled softmax with uniform negatives.

    Args:
        source: The corpus.
        temperature: The inverse temperature β.
        num_negatives: Draws per query.
        seed: Seed of the draws.
    """

    def __init__(
        self, source: ItemSource, temperature: Temperature, num_negatives: int, seed: int
    ) -> None:
        weight = source.num_items / num_negatives
        super().__init__(source, temperature, in_batch=False, seed=seed, weight=weight)
        self._num = num_negatives

    def choose(  # noqa: D102
        self,
        queries: Float[Tensor, "batch dim"],
        keys: Int64[Tensor, " batch"],
        known: Ragged | None,
        generator: torch.Generator,
    ) -> Int64[Tensor, "batch k"]:
        shape, device = (len(queries), self._num), queries.device
        num_items = self._source.num_items
        drawn = torch.randint(num_items, shape, generator=generator, device=device)
        is_positive = drawn == keys.unsqueeze(1)
        if known is not None:
            is_positive |= known.contains(drawn, num_items)
        return torch.where(is_positive, -1, drawn)


@dataclass(frozen=True)
class UniformConfig(NegativesConfig):
    """Sampled softmax: negatives drawn uniformly from the corpus.

    Attributes:
        num_negatives: Draws per query.
    """

    num_negatives: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "num_negatives")

    def build(self, source: ItemSource, seed: int) -> UniformLoss:  # noqa: D102
        temperature = Temperature(self.beta, self.learn_beta)
        return UniformLoss(source, temperature, self.num_negatives, seed)

    def items_per_step(self, batch_size: int, num_items: int) -> int:  # noqa: D102
        return batch_size * self.num_negatives
