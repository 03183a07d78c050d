"""DCNv2 (Wang et al. 2021): DCN with a matrix in each cross layer, full or of low rank.

x₀ = [dense, v₁, …, v_F] passes through cross layers x ← x₀ ⊙ (W x + b) + x. The MLP reads their
output ("stacked") or x₀ ("parallel"). The paper's mixture of low-rank experts is not implemented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch

from outsize.collection import EmbeddingCollection
from outsize.errors import ConfigError
from outsize.models.click_model import ClickModelConfig
from outsize.models.cross import MatrixCross
from outsize.models.cross_and_deep import CrossAndDeep, CrossModel, Structure
from outsize.models.requirements import (
    require_layers,
    require_one_of,
    require_positive,
    require_widths,
)


@dataclass(frozen=True)
class DCNv2Config(ClickModelConfig):
    """Shape of a DCNv2.

    Attributes:
        num_crosses: Number of cross layers.
        rank: Rank of the matrix in each cross layer; `None` for a full matrix.
        hidden: Hidden widths of the deep part; empty for no deep part.
        structure: "stacked" or "parallel".
    """

    num_crosses: int = 3
    rank: int | None = None
    hidden: tuple[int, ...] = (512, 256)
    structure: Structure = "stacked"

    def __post_init__(self) -> None:
        require_widths("hidden", self.hidden)
        require_layers("num_crosses", self.num_crosses)
        require_positive("rank", 1 if self.rank is None else self.rank)
        require_one_of("structure", self.structure, get_args(Structure))

    def build(self, num_dense: int, embeddings: EmbeddingCollection, seed: int) -> DCNv2:  # noqa: D102
        return DCNv2(num_dense, embeddings, **vars(self), seed=seed)


class DCNv2(CrossModel):
    """Predicts a click from products of features and an MLP.

    Args:
        num_dense: Width of the dense features; may be 0.
        embeddings: The categorical features, all of one width.
        num_crosses: Number of cross layers.
        rank: Rank of the matrix in each cross layer; `None` for a full matrix.
        hidden: Hidden widths of the deep part; empty for no deep part.
        structure: "stacked" or "parallel".
        seed: Seed of the initial weights.
    """

    def __init__(
        self,
        num_dense: int,
        embeddings: EmbeddingCollection,
        num_crosses: int = 3,
        rank: int | None = None,
        hidden: Sequence[int] = (512, 256),
        structure: Structure = "stacked",
        seed: int = 0,
    ) -> None:
        super().__init__(num_dense, embeddings)
        DCNv2Config(num_crosses, rank, tuple(hidden), structure)  # checks the shape
        generator = torch.Generator().manual_seed(seed)
        width = num_dense + embeddings.num_features * embeddings.dim
        if rank is not None and rank >= width:
            raise ConfigError(
                f"rank {rank} does not lower a matrix of {width} × {width}: "
                f"choose a rank below {width}, or none for a full matrix"
            )
        crosses = [MatrixCross(width, rank, generator) for _ in range(num_crosses)]
        self.network = CrossAndDeep(width, crosses, hidden, structure, True, generator)
