"""The interface of graph models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from outsize.collection import EmbeddingCollection, FeatureInput
from outsize.contracts.neighborhood import GraphSchema, Neighborhood, feature_of
from outsize.errors import ConfigError
from outsize.models.whole_graph import OneHop, encode_whole_graph


@runtime_checkable
class GraphPredictor(Protocol):
    """Predicts nodes or links of raw rows with a model; an exported model brings its own."""

    classes: tuple[str, ...]

    def predict(self, model: GraphModel, rows: Any, *, logits: bool, skip_bad: bool) -> Any:
        """See `GraphModel.predict`."""

    def search(self, model: GraphModel, rows: Any, k: int, exclude: Any = None) -> Any:
        """See `GraphModel.search`."""


class GraphModel(nn.Module, ABC):
    """Computes a vector per seed of a sampled neighbourhood, layer by layer.

    A node's input is its id's vector and the pooled vectors of its attributes, concatenated. The
    rows of all nodes of a step are read in one exchange.

    Args:
        embeddings: The features of the node types that are read: `schema.features_of(type)`.
        schema: The node types and relations of the graph.
        output_types: The types of seeds.
        num_layers: How many hops the model reads.

    Attributes:
        dim: Width of the vectors that it returns.
        types_by_layer: The node types that are read, then those that each layer computes.
        input_widths: Node type → width of its inputs.
        predictor: How raw rows are predicted; `outsize.load_exported` sets it.
    """

    dim: int
    predictor: GraphPredictor | None = None

    def __init__(
        self,
        embeddings: EmbeddingCollection,
        schema: GraphSchema,
        output_types: Sequence[str],
        num_layers: int,
    ) -> None:
        super().__init__()
        _require_types(schema, output_types)
        self.embeddings, self.schema, self.num_layers = embeddings, schema, num_layers
        self.types_by_layer = schema.types_by_layer(output_types, num_layers)
        read = self.types_by_layer[0]
        self._features = [name for kind in read for name in schema.features_of(kind)]
        by_name = {feature.name: embeddings.spec_of(feature) for feature in embeddings.features}
        for name in self._features:
            if name not in by_name:
                raise ConfigError(
                    f"the embeddings have no feature {name!r}, which the graph's nodes have"
                )
        self.input_widths = {
            kind: sum(by_name[name].dim for name in schema.features_of(kind)) for kind in read
        }

    @abstractmethod
    def apply_layer(
        self,
        number: int,
        vectors: Mapping[str, Float[Tensor, "_ _"]],
        neighborhood: Neighborhood,
        hops: int,
    ) -> dict[str, Tensor]:
        """The vectors of the nodes within some hops of the seeds after a layer.

        Args:
            number: Which layer, from 0.
            vectors: Node type → the vectors of its nodes within one hop more.
            neighborhood: The edges.
            hops: How far the nodes are away that are computed.
        """

    @abstractmethod
    def finish(self, vectors: Float[Tensor, "n _"]) -> Float[Tensor, "n dim"]:
        """What is returned for vectors of the last layer: logits, or what links are scored by."""

    def forward(self, neighborhood: Neighborhood) -> Float[Tensor, "seeds dim"]:
        """The logits or vectors of the seeds, in the order they were asked for."""
        if neighborhood.num_layers != self.num_layers:
            raise ConfigError(
                f"a model of {self.num_layers} layers reads as many hops, but the neighbourhood "
                f"has {neighborhood.num_layers}: give fan_out one number for each layer"
            )
        vectors = self.read(neighborhood)
        for number in range(self.num_layers):
            vectors = self.apply_layer(number, vectors, neighborhood, self.num_layers - 1 - number)
        last = vectors[neighborhood.seed_type]
        return self.finish(last).index_select(0, neighborhood.seeds)

    def read(self, neighborhood: Neighborhood) -> dict[str, Tensor]:
        """The inputs of all nodes of a neighbourhood, by type, in one exchange."""
        inputs: dict[str, FeatureInput] = {}
        for kind in self.types_by_layer[0]:
            inputs[kind] = neighborhood.nodes[kind]
            for name in self.schema.nodes[kind]:
                inputs[feature_of(kind, name)] = neighborhood.attributes[kind][name]
        found = self.embeddings.ragged(inputs, self._features)
        return {
            kind: torch.cat([found[name] for name in self.schema.features_of(kind)], dim=1)
            for kind in self.types_by_layer[0]
        }

    def encode_all(
        self, sampler: OneHop, node_type: str, nodes: Any = None, *, max_edges: int = 1 << 18
    ) -> Float[Tensor, "n dim"]:
        """The vectors of many nodes, layer by layer; entered by all ranks.

        The result is that of `forward` on neighbourhoods with all neighbours, but each node is
        computed once per layer. In memory are the vectors of one layer, of the nodes that the
        result depends on.

        Args:
            sampler: Samples one hop, as `NeighborSampler(graph, [-1])` does.
            node_type: The type of the nodes.
            nodes: Their ids; by default all.
            max_edges: Edges per chunk; a node with more is a chunk of its own.
        """
        return encode_whole_graph(self, sampler, node_type, nodes, max_edges)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes in the order of `predict`; empty for links."""
        return self._predictor.classes

    def predict(self, rows: Any, *, logits: bool = False, skip_bad: bool = False) -> NDArray[Any]:
        """Predict the classes of nodes, or score pairs of nodes, in evaluation mode.

        A node that the graph does not have is predicted through its neighbours: raw ids in a column
        for each relation that leads to it, as lists or as texts with a separator; and its values of
        attributes. Of a node that the graph has, the graph's own edges and attributes are taken.

        Args:
            rows: The column of raw ids of nodes (for links, of sources and of targets), in any of
                the forms that `ClickModel.predict` takes.
            logits: Return logits (float32) instead of probabilities (float64).
            skip_bad: Return NaN for rows that cannot be scored, instead of raising an error.

        Returns:
            `(n, C)` probabilities of classes in the order of `classes`: those of a node sum to 1,
            or are independent if a node may have several classes. For links `(n,)` scores, the
            inner products of vectors.

        Raises:
            DataError: A column is missing, or rows cannot be scored: a missing id, or one that the
                graph does not have and that comes without known neighbours.
        """
        return self._predictor.predict(self, rows, logits=logits, skip_bad=skip_bad)  # type: ignore[no-any-return]

    def search(self, rows: Any, k: int = 10, exclude: Any = None) -> Any:
        """The best targets of links from nodes, exactly, over all nodes of the targets' type.

        A node is never its own target.

        Args:
            rows: The column of raw ids of sources; new ones as for `predict`.
            k: Targets per source.
            exclude: Raw ids of targets to leave out, a list for each row, such as those of links
                that are known. Ids that are of no node are a warning.

        Returns:
            `.items`, lists of raw ids, best first, and `.scores`, `(n, k)`.
        """
        return self._predictor.search(self, rows, k, exclude)

    @property
    def _predictor(self) -> GraphPredictor:
        if self.predictor is None:
            raise ConfigError(
                "this model does not know raw ids: export its run, and load it with "
                "outsize.load_exported; or call the model with a neighbourhood"
            )
        return self.predictor


class GraphModelConfig(ABC):
    """The configuration of a graph model; `build` makes the model.

    Attributes:
        layers: How many hops it reads.
    """

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


def _require_types(schema: GraphSchema, output_types: Sequence[str]) -> None:
    if not output_types:
        raise ConfigError("a graph model needs the node types of its seeds, but got none")
    for kind in output_types:
        if kind not in schema.nodes:
            raise ConfigError(
                f"the graph has no node type {kind!r}: it has {', '.join(schema.nodes)}"
            )
