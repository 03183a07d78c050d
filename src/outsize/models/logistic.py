"""Logistic regression, the baseline for click models.

    logit = u · dense + w₁ + … + w_F + b

w_f is the weight of the id of feature f: the sum of its row. Rows of width 1 are enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from outsize.collection import EmbeddingCollection, FeatureInput
from outsize.models.click_model import ClickModel, ClickModelConfig


@dataclass(frozen=True)
class LogisticConfig(ClickModelConfig):
    """The configuration of logistic regression, which has no settings."""

    initial_std = 0.001  # a row is a weight, and noise in it is noise in every logit

    def build(self, num_dense: int, embeddings: EmbeddingCollection, seed: int) -> Logistic:  # noqa: D102
        return Logistic(num_dense, embeddings, seed)


class Logistic(ClickModel):
    """Predicts a click from a weight for each id and each dense feature.

    Args:
        num_dense: Width of the dense features; may be 0.
        embeddings: The categorical features, all of one width; 1 is enough.
        seed: Ignored: all weights except the rows start at 0, and the problem is convex.
    """

    def __init__(self, num_dense: int, embeddings: EmbeddingCollection, seed: int = 0) -> None:
        super().__init__(num_dense, embeddings)
        _ = embeddings.dim  # raises if rows differ in width
        self.bias = nn.Parameter(torch.zeros(()))
        self.dense_weights = nn.Parameter(torch.zeros(num_dense)) if num_dense else None

    def forward(
        self, dense: Float[Tensor, "batch num_dense"], ids: Mapping[str, FeatureInput]
    ) -> Float[Tensor, " batch"]:
        """The logit of a click for each example."""
        logits: Tensor = self.embeddings.stacked(ids).sum(dim=(1, 2)).to(dense.dtype) + self.bias
        if self.dense_weights is not None:
            logits = logits + dense @ self.dense_weights
        return logits.float()
