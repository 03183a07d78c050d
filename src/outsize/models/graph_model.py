"""The interface of graph models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from outsize.collection import EmbeddingCollection
from outsize.contracts.neighborhood import GraphSchema, Neighborhood


class GraphModel(nn.Module, ABC):
    """Computes a vector per seed of a sampled neighbourhood.

    Attributes:
        embeddings: The ids and attributes of nodes; see `GraphSchema.features_of`.
        schema: The node types and relations of the graph.
        num_layers: How many hops it reads.
        dim: Width of the vectors that it returns.
    """

    embeddings: EmbeddingCollection
    schema: GraphSchema
    num_layers: int
    dim: int

    @abstractmethod
    def forward(self, neighborhood: Neighborhood) -> Float[Tensor, "seeds dim"]:
        """The vectors of the seeds: logits of classes, or what links are scored by."""


class GraphModelConfig(ABC):
    """The configuration of a graph model; `build` makes the model."""

    task: ClassVar[str] = "graph"
    layers: int

    @abstractmethod
    def build(
        self,
        embeddings: EmbeddingCollection,
        schema: GraphSchema,
        output_types: Sequence[str],
        num_classes: int | None,
        seed: int,
    ) -> GraphModel:
        """Build the model with initial weights.

        Args:
            embeddings: The features of all node types that it reads.
            schema: The node types and relations of the graph.
            output_types: The types of seeds.
            num_classes: Number of logits; `None` for vectors that links are scored by.
            seed: Seed of the initial weights.
        """
