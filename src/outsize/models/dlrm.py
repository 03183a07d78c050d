"""DLRM (Naumov et al. 2019): an MLP over dense features, pairwise dot products, and a top MLP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from outsize.collection import EmbeddingCollection, FeatureInput
from outsize.errors import ConfigError
from outsize.models.click_model import ClickModel, ClickModelConfig
from outsize.models.interaction import Interaction
from outsize.models.mlp import mlp
from outsize.models.requirements import require_widths


@dataclass(frozen=True)
class DLRMConfig(ClickModelConfig):
    """Shape of a DLRM.

    Attributes:
        bottom: Hidden widths of the MLP over dense features; its output has the embeddings' width.
        top: Hidden widths of the MLP over interactions; its output is one logit.
    """

    bottom: tuple[int, ...] = (512, 256, 64)
    top: tuple[int, ...] = (512, 256)

    def __post_init__(self) -> None:
        require_widths("bottom", self.bottom)
        require_widths("top", self.top)

    def build(self, num_dense: int, embeddings: EmbeddingCollection, seed: int) -> DLRM:  # noqa: D102
        return DLRM(num_dense, embeddings, self.bottom, self.top, seed)


class DLRM(ClickModel):
    """Predicts a click from dense features and embeddings, which must all have one width.

    With the defaults, 13 dense features and dim 16 this is the benchmark model of the DLRM
    repository: bottom 13-512-256-64-16, top 512-256-1.

    Args:
        num_dense: Width of the dense features; with 0 there is no bottom MLP.
        embeddings: The categorical features.
        bottom: Hidden widths of the bottom MLP.
        top: Hidden widths of the top MLP.
        seed: Seed of the initial weights.
    """

    def __init__(
        self,
        num_dense: int,
        embeddings: EmbeddingCollection,
        bottom: Sequence[int] = (512, 256, 64),
        top: Sequence[int] = (512, 256),
        seed: int = 0,
    ) -> None:
        super().__init__(num_dense, embeddings)
        dim = embeddings.dim
        generator = torch.Generator().manual_seed(seed)
        self.bottom = (
            mlp((num_dense, *bottom, dim), final_relu=True, generator=generator)
            if num_dense
            else None
        )
        self.interaction = Interaction(embeddings.num_features + (1 if num_dense else 0))
        width = self.interaction.num_pairs + (dim if num_dense else 0)
        if not width:
            raise ConfigError("DLRM needs dense features or two categorical ones to interact")
        self.top = mlp((width, *top, 1), final_relu=False, generator=generator)

    def forward(
        self, dense: Float[Tensor, "batch num_dense"], ids: Mapping[str, FeatureInput]
    ) -> Float[Tensor, " batch"]:
        """The logit of a click for each example."""
        vectors = self.embeddings.stacked(ids).to(dense.dtype)
        hidden = None if self.bottom is None else self.bottom(dense)
        logits: Tensor = self.top(self.interaction(vectors, hidden)).squeeze(1)
        return logits.float()
