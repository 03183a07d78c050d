"""What a retrieval model promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from outsize.collection import EmbeddingCollection, FeatureInput


class RetrievalModel(nn.Module, ABC):
    """Encodes queries and items as vectors of one width, whose inner product is their score.

    Attributes:
        embeddings: The features of both.
        dim: Width of the vectors.
    """

    embeddings: EmbeddingCollection
    dim: int

    @abstractmethod
    def encode_queries(self, inputs: Mapping[str, FeatureInput]) -> Float[Tensor, "batch dim"]:
        """The vectors of queries, given their features."""

    @abstractmethod
    def encode_items(self, inputs: Mapping[str, FeatureInput]) -> Float[Tensor, "n dim"]:
        """The vectors of items, given their features."""

    def forward(
        self, queries: Mapping[str, FeatureInput], items: Mapping[str, FeatureInput]
    ) -> tuple[Float[Tensor, "batch dim"], Float[Tensor, "n dim"]]:
        """Both, as training wants them."""
        return self.encode_queries(queries), self.encode_items(items)


class RetrievalModelConfig(ABC):
    """The configuration of a retrieval model; it makes the model."""

    task: ClassVar[str] = "retrieval"

    @abstractmethod
    def features_of(self, known: Sequence[str], side: str) -> tuple[str, ...]:
        """Which of the features that the data has of a side, "query" or "item", the model reads."""

    @abstractmethod
    def build(
        self,
        embeddings: EmbeddingCollection,
        query_features: Sequence[str],
        item_features: Sequence[str],
        seed: int,
        numbers: Sequence[str] = (),
    ) -> RetrievalModel:
        """Make the model with fresh weights; `numbers` are features that are no ids."""
