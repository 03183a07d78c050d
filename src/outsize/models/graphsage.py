"""GraphSAGE (Hamilton et al. 2017) over nodes that have no features but a trained row per id.

A node's input is its id's vector and the pooled vectors of its attributes, concatenated. Each layer
adds what it makes of a node to what it makes of the node's sampled neighbours (`graph_layers`),
followed by a ReLU. Of the last vectors, a linear layer makes the logits of classes; the score of a
link is the inner product of two of them, without the last ReLU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from outsize.collection import EmbeddingCollection, FeatureInput
from outsize.contracts.neighborhood import GraphSchema, Neighborhood, feature_of
from outsize.errors import ConfigError
from outsize.hashing import derive_seed
from outsize.models.graph_layers import AGGREGATIONS, EdgeLists, GraphLayer, Vectors
from outsize.models.graph_model import GraphModel, GraphModelConfig
from outsize.models.mlp import linear
from outsize.models.requirements import require_layers, require_one_of, require_positive
from outsize.models.stateless_dropout import drop_numbers
from outsize.models.whole_graph import OneHop, encode_whole_graph


@dataclass(frozen=True)
class GraphSAGEConfig(GraphModelConfig):
    """Shape of a GraphSAGE model.

    Attributes:
        hidden: Width of the vectors of each layer.
        layers: Number of layers, and so of hops.
        aggregate: "mean"; "gcn" for the mean of a node and its neighbours; or "max".
        dropout: Share of the numbers that are set to zero at the input of each layer in training.
        normalize: Whether the last vectors are normalized to length 1; by default for links only.
    """

    hidden: int = 128
    layers: int = 2
    aggregate: str = "mean"
    dropout: float = 0.0
    normalize: bool | None = None

    def __post_init__(self) -> None:
        require_positive("hidden", self.hidden)
        require_layers("layers", self.layers)
        require_one_of("aggregate", self.aggregate, list(AGGREGATIONS))
        _require_dropout(self.dropout)

    def build(  # noqa: D102
        self,
        embeddings: EmbeddingCollection,
        schema: GraphSchema,
        output_types: Sequence[str],
        num_classes: int | None,
        seed: int,
    ) -> GraphSAGE:
        return GraphSAGE(
            embeddings,
            schema,
            output_types,
            num_classes,
            hidden=self.hidden,
            layers=self.layers,
            aggregate=self.aggregate,
            dropout=self.dropout,
            normalize=num_classes is None if self.normalize is None else self.normalize,
            seed=seed,
        )


class GraphSAGE(GraphModel):
    """A vector for each seed from its own rows and those of its neighbourhood.

    The rows of all nodes of a step are read in one exchange. Dropout is a function of (seed, draw,
    layer, node), so ranks that compute parts of a batch drop what one process drops.

    Args:
        embeddings: The features of the node types that are read: `schema.features_of(type)`.
        schema: The node types and relations of the graph.
        output_types: The types of seeds.
        num_classes: Number of logits; `None` returns the last vectors themselves.
        hidden: Width of the vectors of each layer.
        layers: Number of layers, and so of hops.
        aggregate: "mean"; "gcn" for the mean of a node and its neighbours; or "max".
        dropout: Share of the numbers that are set to zero at the input of each layer in training.
        normalize: Whether the last vectors are normalized to length 1.
        seed: Seed of the initial weights and of dropout.
    """

    def __init__(
        self,
        embeddings: EmbeddingCollection,
        schema: GraphSchema,
        output_types: Sequence[str],
        num_classes: int | None = None,
        *,
        hidden: int = 128,
        layers: int = 2,
        aggregate: str = "mean",
        dropout: float = 0.0,
        normalize: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        require_positive("hidden", hidden)
        require_layers("layers", layers)
        require_one_of("aggregate", aggregate, list(AGGREGATIONS))
        _require_dropout(dropout)
        _require_types(schema, output_types)
        self.embeddings, self.schema, self.num_layers = embeddings, schema, layers
        self.dim = hidden if num_classes is None else num_classes
        self.dropout, self.normalize = dropout, normalize
        self._seed = seed
        types = schema.types_by_layer(output_types, layers)
        self.read_types = tuple(types[0])
        self._features = [name for kind in types[0] for name in schema.features_of(kind)]
        by_name = {feature.name: embeddings.spec_of(feature) for feature in embeddings.features}
        for name in self._features:
            if name not in by_name:
                raise ConfigError(
                    f"the embeddings have no feature {name!r}, which the graph's nodes have"
                )
        widths = {
            kind: sum(by_name[name].dim for name in schema.features_of(kind)) for kind in types[0]
        }
        generator = torch.Generator().manual_seed(seed)
        self.layers = torch.nn.ModuleList()
        for targets in types[1:]:
            layer = AGGREGATIONS[aggregate](schema, targets, widths, hidden, generator)
            self.layers.append(layer)
            widths = dict.fromkeys(targets, hidden)
        self.head = None
        if num_classes is not None:
            require_positive("num_classes", num_classes)
            self.head = linear(hidden, num_classes, generator=generator)

    @classmethod
    def het(
        cls,
        embeddings: EmbeddingCollection,
        schema: GraphSchema,
        output_types: Sequence[str],
        num_classes: int | None = None,
        seed: int = 0,
    ) -> GraphSAGE:
        """The shape of HET's experiments: two layers of 128 over rows of 128, with the mean.

        A graph of one type with 41 classes has 71,081 dense parameters. The 2.40K to 19.48K of
        HET's Table 3 cannot be reached: one matrix of 128 × 128 has 16,384.
        """
        if embeddings.dim != 128:
            raise ConfigError(f"HET's shape reads rows of 128, but these are {embeddings.dim} wide")
        return cls(embeddings, schema, output_types, num_classes, hidden=128, layers=2, seed=seed)

    def forward(self, neighborhood: Neighborhood) -> Float[Tensor, "seeds dim"]:
        """The logits or vectors of the seeds, in the order they were asked for."""
        if neighborhood.num_layers != self.num_layers:
            raise ConfigError(
                f"a model of {self.num_layers} layers reads as many hops, but the neighbourhood "
                f"has {neighborhood.num_layers}: give fan_out one number for each layer"
            )
        vectors: Vectors = self.read(neighborhood)
        for number in range(self.num_layers):
            vectors = self.apply_layer(number, vectors, neighborhood, self.num_layers - 1 - number)
        last = vectors[neighborhood.seed_type]
        return self.finish(last).index_select(0, neighborhood.seeds)

    def read(self, neighborhood: Neighborhood) -> dict[str, Tensor]:
        """The inputs of all nodes of a neighbourhood, by type, in one exchange."""
        inputs: dict[str, FeatureInput] = {}
        for kind in self.read_types:
            inputs[kind] = neighborhood.nodes[kind]
            for name in self.schema.nodes[kind]:
                inputs[feature_of(kind, name)] = neighborhood.attributes[kind][name]
        found = self.embeddings.ragged(inputs, self._features)
        return {
            kind: torch.cat([found[name] for name in self.schema.features_of(kind)], dim=1)
            for kind in self.read_types
        }

    def apply_layer(
        self, number: int, vectors: Vectors, neighborhood: Neighborhood, hops: int
    ) -> dict[str, Tensor]:
        """The vectors of the nodes within some hops of the seeds after a layer.

        Args:
            number: Which layer, from 0.
            vectors: Node type → the vectors of its nodes within one hop more.
            neighborhood: The edges.
            hops: How far the nodes are away that are computed.
        """
        layer = self.layers[number]
        assert isinstance(layer, GraphLayer)
        if self.training and self.dropout:
            vectors = {
                kind: self._drop(values, kind, number, neighborhood)
                for kind, values in vectors.items()
            }
        edges: EdgeLists = {name: neighborhood.edges[name].within(hops) for name in layer.relations}
        num_targets = {kind: neighborhood.within[kind][hops] for kind in layer.targets}
        found: dict[str, Tensor] = layer(vectors, edges, num_targets)
        is_last = number == self.num_layers - 1
        if is_last and self.head is None:
            return found
        return {kind: values.relu() for kind, values in found.items()}

    def finish(self, vectors: Float[Tensor, "n hidden"]) -> Float[Tensor, "n dim"]:
        """What is returned for vectors of the last layer."""
        if self.normalize:
            vectors = F.normalize(vectors, dim=1)
        return vectors if self.head is None else self.head(vectors)

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
            nodes: Their ids, distinct; by default all.
            max_edges: Edges per chunk; a node with more is a chunk of its own.
        """
        return encode_whole_graph(self, sampler, node_type, nodes, max_edges)

    def _drop(
        self, values: Tensor, kind: str, layer: int, neighborhood: Neighborhood
    ) -> Float[Tensor, "n width"]:
        seed = derive_seed(self._seed, "dropout", kind, layer, neighborhood.number)
        return drop_numbers(values, neighborhood.nodes[kind][: values.shape[0]], self.dropout, seed)


def _require_dropout(share: float) -> None:
    if not 0 <= share < 1:
        raise ConfigError(f"dropout must be >= 0 and < 1, but got {share}")


def _require_types(schema: GraphSchema, output_types: Sequence[str]) -> None:
    if not output_types:
        raise ConfigError("a graph model needs the node types of its seeds, but got none")
    for kind in output_types:
        if kind not in schema.nodes:
            raise ConfigError(
                f"the graph has no node type {kind!r}: it has {', '.join(schema.nodes)}"
            )
