"""DCN (Wang et al. 2017): a cross network in parallel with an MLP.

x₀ = [dense, v₁, …, v_F] goes through cross layers x ← x₀ (x · w) + b + x and, in parallel, through
an MLP; the logit is linear in both outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outsize.collection import EmbeddingCollection
from outsize.models.click_model import ClickModelConfig
from outsize.models.cross import VectorCross
from outsize.models.cross_and_deep import CrossAndDeep, CrossModel
from outsize.models.requirements import require_layers, require_widths


@dataclass(frozen=True)
class DCNConfig(ClickModelConfig):
    """Shape of a DCN.

    Attributes:
        num_crosses: Number of cross layers.
        hidden: Hidden widths of the deep part; empty for no deep part.
        bias: Whether the deep part and the output have biases; cross layers always have.
    """

    num_crosses: int = 6
    hidden: tuple[int, ...] = (1024, 1024)
    bias: bool = True

    def __post_init__(self) -> None:
        require_widths("hidden", self.hidden)
        require_layers("num_crosses", self.num_crosses)

    @classmethod
    def het(cls) -> DCNConfig:
        """HET's shape: 1,010,011 dense parameters with 13 dense features and 26 rows of 128."""
        return cls(num_crosses=3, hidden=(256, 256, 256), bias=False)

    def build(self, num_dense: int, embeddings: EmbeddingCollection, seed: int) -> DCN:  # noqa: D102
        return DCN(num_dense, embeddings, self.num_crosses, self.hidden, self.bias, seed)


class DCN(CrossModel):
    """Predicts a click from products of features and an MLP.

    Args:
        num_dense: Width of the dense features; may be 0.
        embeddings: The categorical features, all of one width.
        num_crosses: Number of cross layers.
        hidden: Hidden widths of the deep part; empty for no deep part.
        bias: Whether the deep part and the output have biases.
        seed: Seed of the initial weights.
    """

    def __init__(
        self,
        num_dense: int,
        embeddings: EmbeddingCollection,
        num_crosses: int = 6,
        hidden: Sequence[int] = (1024, 1024),
        bias: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(num_dense, embeddings)
        DCNConfig(num_crosses, tuple(hidden), bias)  # checks the shape
        generator = torch.Generator().manual_seed(seed)
        width = num_dense + embeddings.num_features * embeddings.dim
        crosses = [VectorCross(width, generator) for _ in range(num_crosses)]
        self.network = CrossAndDeep(width, crosses, hidden, "parallel", bias, generator)

    @classmethod
    def het(cls, num_dense: int, embeddings: EmbeddingCollection, seed: int = 0) -> DCN:
        """The model of HET's experiments; see `DCNConfig.het`."""
        return DCNConfig.het().build(num_dense, embeddings, seed)
