"""The interface of retrieval models."""

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
        embeddings: The features of queries and items.
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
        """Encode queries and items in one call, for training."""
        return self.encode_queries(queries), self.encode_items(items)


class RetrievalModelConfig(ABC):
    """The configuration of a retrieval model; `build` makes the model."""

    task: ClassVar[str] = "retrieval"

    @abstractmethod
    def features_of(self, known: Sequence[str], side: str) -> tuple[str, ...]:
        """The features that the model reads, of those the data has for "query" or "item"."""

    @abstractmethod
    def build(
        self,
        embeddings: EmbeddingCollection,
        query_features: Sequence[str],
        item_features: Sequence[str],
        seed: int,
        numbers: Sequence[str] = (),
    ) -> RetrievalModel:
        """Build the model with initial weights; `numbers` are features that are not ids."""
