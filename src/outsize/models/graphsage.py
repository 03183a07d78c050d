"""GraphSAGE (Hamilton et al. 2017) over nodes that have no features but a trained row per id.

Each layer adds what it makes of a node to what it makes of the node's sampled neighbours
(`graph_layers`), followed by a ReLU. Of the last vectors, a linear layer makes the logits of
classes; the score of a link is the inner product of two of them, without the last ReLU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from outsize.collection import EmbeddingCollection
from outsize.contracts.neighborhood import GraphSchema, Neighborhood
from outsize.errors import ConfigError
from outsize.hashing import derive_seed, mix_bits, uniform_at
from outsize.models.graph_layers import AGGREGATIONS, EdgeLists, GraphLayer, Vectors
from outsize.models.graph_model import GraphModel, GraphModelConfig
from outsize.models.mlp import linear
from outsize.models.requirements import require_layers, require_one_of, require_positive
from outsize.models.stateless_dropout import drop_numbers


@dataclass(frozen=True)
class GraphSAGEConfig(GraphModelConfig):
    """Shape of a GraphSAGE model.

    Attributes:
        hidden: Width of the vectors of each layer.
        layers: Number of layers, and so of hops.
        aggregate: "mean"; "gcn" for the mean of a node and its neighbours; or "max".
        dropout: Share of the numbers that are set to zero at the input of each layer in training.
        seed_dropout: Share of the seeds whose inputs are set to zero in training, so that a node's
            class is learned from its neighbours and not memorized by its own row.
        normalize: Whether the last vectors are normalized to length 1; by default for links only.
    """

    hidden: int = 128
    layers: int = 2
    aggregate: str = "mean"
    dropout: float = 0.0
    seed_dropout: float = 0.0
    normalize: bool | None = None

    def __post_init__(self) -> None:
        require_positive("hidden", self.hidden)
        require_layers("layers", self.layers)
        require_one_of("aggregate", self.aggregate, list(AGGREGATIONS))
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be >= 0 and < 1, but got {self.dropout}")
        if not 0 <= self.seed_dropout <= 1:
            raise ConfigError(f"seed_dropout must be >= 0 and <= 1, but got {self.seed_dropout}")

    def build(  # noqa: D102
        self,
        embeddings: EmbeddingCollection,
        schema: GraphSchema,
        output_types: Sequence[str],
        num_classes: int | None,
        seed: int,
    ) -> GraphSAGE:
        normalize = num_classes is None if self.normalize is None else self.normalize
        settings = vars(self) | {"normalize": normalize}
        return GraphSAGE(embeddings, schema, output_types, num_classes, **settings, seed=seed)


class GraphSAGE(GraphModel):
    """A vector for each seed from its own rows and those of its neighbourhood.

    Dropout is a function of (seed, draw, layer, node), so ranks that compute parts of a batch drop
    what one process drops.

    Args:
        embeddings: The features of the node types that are read: `schema.features_of(type)`.
        schema: The node types and relations of the graph.
        output_types: The types of seeds.
        num_classes: Number of logits; `None` returns the last vectors themselves.
        hidden: Width of the vectors of each layer.
        layers: Number of layers, and so of hops.
        aggregate: "mean"; "gcn" for the mean of a node and its neighbours; or "max".
        dropout: Share of the numbers that are set to zero at the input of each layer in training.
        seed_dropout: Share of the seeds whose inputs are set to zero in training, so that a node's
            class is learned from its neighbours and not memorized by its own row.
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
        seed_dropout: float = 0.0,
        normalize: bool = False,
        seed: int = 0,
    ) -> None:
        GraphSAGEConfig(hidden, layers, aggregate, dropout, seed_dropout)  # checks the shape
        super().__init__(embeddings, schema, output_types, layers)
        self.dim = hidden if num_classes is None else num_classes
        self.dropout, self.seed_dropout, self.normalize = dropout, seed_dropout, normalize
        self._seed = seed
        widths: Mapping[str, int] = self.input_widths
        generator = torch.Generator().manual_seed(seed)
        self.layers = torch.nn.ModuleList()
        for targets in self.types_by_layer[1:]:
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

    def read(self, neighborhood: Neighborhood) -> dict[str, Tensor]:
        """The inputs of all nodes, by type, in one exchange; in training without some seeds'."""
        vectors = super().read(neighborhood)
        if self.training and self.seed_dropout:
            kind = neighborhood.seed_type
            count = neighborhood.within[kind][0]
            seed = derive_seed(self._seed, "seeds", kind, neighborhood.number)
            draws = uniform_at(mix_bits(neighborhood.nodes[kind][:count] ^ seed))
            stays = torch.ones(len(vectors[kind]), 1, device=draws.device, dtype=draws.dtype)
            stays[:count, 0] = (draws >= self.seed_dropout).to(draws.dtype)
            vectors[kind] = vectors[kind] * stays
        return vectors

    def apply_layer(  # noqa: D102
        self, number: int, vectors: Vectors, neighborhood: Neighborhood, hops: int
    ) -> dict[str, Tensor]:
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

    def finish(self, vectors: Float[Tensor, "n hidden"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        if self.normalize:
            vectors = F.normalize(vectors, dim=1)
        return vectors if self.head is None else self.head(vectors)

    def _drop(
        self, values: Tensor, kind: str, layer: int, neighborhood: Neighborhood
    ) -> Float[Tensor, "n width"]:
        seed = derive_seed(self._seed, "dropout", kind, layer, neighborhood.number)
        return drop_numbers(values, neighborhood.nodes[kind][: values.shape[0]], self.dropout, seed)
