"""GMF (He et al. 2017, "Neural collaborative filtering"): a weighted inner product of two vectors.

    logit = h · (v_user ⊙ v_item) + b

Equation 9 of the paper has no b. The authors' code has one, and so does this model by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from outsize.collection import EmbeddingCollection, FeatureInput
from outsize.errors import ConfigError
from outsize.models.click_model import ClickModel, ClickModelConfig
from outsize.models.mlp import linear
from outsize.suggestions import few


@dataclass(frozen=True)
class GMFConfig(ClickModelConfig):
    """Shape of a GMF.

    Attributes:
        bias: Whether the logit has a bias.
    """

    bias: bool = True

    def build(self, num_dense: int, embeddings: EmbeddingCollection, seed: int) -> GMF:  # noqa: D102
        return GMF(num_dense, embeddings, self.bias, seed)


class GMF(ClickModel):
    """Predicts a click from two categorical features, such as user and item, and nothing else.

    Args:
        num_dense: Must be 0: GMF reads no dense features.
        embeddings: Two categorical features of one width.
        bias: Whether the logit has a bias.
        seed: Seed of the initial weights.
    """

    def __init__(
        self, num_dense: int, embeddings: EmbeddingCollection, bias: bool = True, seed: int = 0
    ) -> None:
        super().__init__(num_dense, embeddings)
        if num_dense:
            raise ConfigError(
                f"GMF reads no dense features, but the data has {num_dense}: leave them out, "
                "or choose another model"
            )
        if embeddings.num_features != 2:
            names = few(feature.name for feature in embeddings.features)
            raise ConfigError(
                f"GMF reads two categorical features, but the data has "
                f"{embeddings.num_features} ({names}): choose another model"
            )
        generator = torch.Generator().manual_seed(seed)
        self.output = linear(embeddings.dim, 1, generator=generator, bias=bias)

    def forward(
        self, dense: Float[Tensor, "batch num_dense"], ids: Mapping[str, FeatureInput]
    ) -> Float[Tensor, " batch"]:
        """The logit of a click for each example."""
        user, item = self.embeddings.stacked(ids).to(dense.dtype).unbind(dim=1)
        logits: Tensor = self.output(user * item).squeeze(1)
        return logits.float()
