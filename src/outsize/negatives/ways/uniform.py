"""Items drawn evenly from all: sampled softmax.

Each of the k drawn counts for as many items as the corpus has over k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.bounds import require_at_least
from outsize.kernels.ragged import Ragged
from outsize.negatives.contract import ItemSource, NegativesConfig
from outsize.negatives.temperature import Temperature
from outsize.negatives.ways.chosen_items import SampledLoss


class UniformLoss(SampledLoss):
    """Sampled softmax with items drawn evenly from all.

    Args:
        source: All items.
        temperature: β.
        num_negatives: Items drawn for each query.
        seed: Seed of the draws.
    """

    def __init__(
        self, source: ItemSource, temperature: Temperature, num_negatives: int, seed: int
    ) -> None:
        super().__init__(source, temperature, in_batch=False, seed=seed)
        self._num = num_negatives

    @property
    def log_weight(self) -> float:  # noqa: D102
        return math.log(self._source.num_items / self._num)

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
        is_right = drawn == keys.unsqueeze(1)
        if known is not None:
            is_right |= known.contains(drawn, num_items)
        return torch.where(is_right, -1, drawn)


@dataclass(frozen=True)
class UniformConfig(NegativesConfig):
    """Items drawn evenly from all.

    Attributes:
        num_negatives: Items drawn for each query.
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
