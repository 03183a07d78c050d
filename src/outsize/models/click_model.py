"""The interface of click models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from outsize.collection import EmbeddingCollection, FeatureInput
from outsize.errors import ConfigError


class ClickModel(nn.Module, ABC):
    """Predicts clicks from dense features and an `EmbeddingCollection`.

    Attributes:
        num_dense: Number of dense features; 0 if there are none.
        embeddings: The categorical features.
    """

    num_dense: int
    embeddings: EmbeddingCollection

    def __init__(self, num_dense: int, embeddings: EmbeddingCollection) -> None:
        super().__init__()
        if num_dense < 0:
            raise ConfigError(f"num_dense must be >= 0, but got {num_dense}")
        self.num_dense = num_dense
        self.embeddings = embeddings

    @abstractmethod
    def forward(
        self, dense: Float[Tensor, "batch num_dense"], ids: Mapping[str, FeatureInput]
    ) -> Float[Tensor, " batch"]:
        """The logit of a click for each example."""


class ClickModelConfig(ABC):
    """The configuration of a click model; `build` makes the model."""

    task: ClassVar[str] = "click"

    @abstractmethod
    def build(self, num_dense: int, embeddings: EmbeddingCollection, seed: int) -> ClickModel:
        """Build the model with initial weights."""
