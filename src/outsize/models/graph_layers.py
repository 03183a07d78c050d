"""Layers of graph models: a node's next vector from its own and its neighbours'.

With N_r(v) the sampled neighbours of node v in relation r,

    mean  h'_v = W_type h_v + Σ_r W_r · mean_{u ∈ N_r(v)} h_u + b
    gcn   h'_v = (W_type h_v + Σ_r W_r Σ_{u ∈ N_r(v)} h_u) / (1 + Σ_r |N_r(v)|) + b
    max   h'_v = W_type h_v + Σ_r W_r · max_{u ∈ N_r(v)} relu(P_r h_u + p_r) + b

(Hamilton et al. 2017, "Inductive Representation Learning on Large Graphs": the mean, GCN and
pooling aggregators). In gcn, relations within a type share W_type, so a graph of one type has one
matrix per layer. A node without neighbours has zeros in their place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from outsize.contracts.neighborhood import GraphSchema
from outsize.kernels.neighbors.aggregate import aggregate
from outsize.models.mlp import linear

Vectors = Mapping[str, Float[Tensor, "_ _"]]
EdgeLists = Mapping[str, tuple[Int64[Tensor, " _"], Int64[Tensor, " _"]]]


class GraphLayer(nn.Module, ABC):
    """Computes the vectors of the nodes of some types from all nodes that it is given.

    Args:
        schema: Node types and relations.
        targets: The types whose vectors are computed.
        widths: Node type → width of its vectors.
        width: Width of the vectors that are computed.
        generator: Source of the initial weights.
    """

    def __init__(
        self,
        schema: GraphSchema,
        targets: Sequence[str],
        widths: Mapping[str, int],
        width: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.targets = tuple(targets)
        self.relations = {
            name: ends for name, ends in schema.relations.items() if ends[1] in self.targets
        }
        self.own = nn.ModuleList(
            linear(widths[kind], width, generator=generator) for kind in self.targets
        )
        self.of_relation = nn.ModuleDict()
        self._build_relations(widths, width, generator)

    @abstractmethod
    def _build_relations(
        self, widths: Mapping[str, int], width: int, generator: torch.Generator
    ) -> None:
        """Make the weights of relations."""

    @abstractmethod
    def forward(
        self, vectors: Vectors, edges: EdgeLists, num_targets: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """The vectors of targets.

        Args:
            vectors: Node type → the vectors of its nodes, targets first.
            edges: Relation → `starts` and `sources` of the edges of its targets.
            num_targets: Node type → how many of its nodes are targets.
        """

    def _own_of(self, vectors: Vectors, num_targets: Mapping[str, int]) -> dict[str, Tensor]:
        """What targets get from themselves: W_type h_v + b."""
        return {
            kind: layer(vectors[kind][: num_targets[kind]])
            for kind, layer in zip(self.targets, self.own, strict=True)
        }

    def _matrices(
        self,
        names: Sequence[str],
        widths: Mapping[str, int],
        width: int,
        generator: torch.Generator,
    ) -> None:
        """Make W_r of some relations, without biases."""
        for name in names:
            fan_in = widths[self.relations[name][0]]
            self.of_relation[_key(name)] = linear(fan_in, width, generator=generator, bias=False)


class MeanLayer(GraphLayer):
    """The mean of neighbours, with weights of its own."""

    def _build_relations(
        self, widths: Mapping[str, int], width: int, generator: torch.Generator
    ) -> None:
        self._matrices(list(self.relations), widths, width, generator)

    def forward(  # noqa: D102
        self, vectors: Vectors, edges: EdgeLists, num_targets: Mapping[str, int]
    ) -> dict[str, Tensor]:
        found = self._own_of(vectors, num_targets)
        for name, (source, target) in self.relations.items():
            mean = aggregate(vectors[source], *edges[name], "mean")
            found[target] = found[target] + self.of_relation[_key(name)](mean)
        return found


class MaxLayer(GraphLayer):
    """The element-wise maximum of what a layer with ReLU makes of each neighbour."""

    def _build_relations(
        self, widths: Mapping[str, int], width: int, generator: torch.Generator
    ) -> None:
        self.pool = nn.ModuleDict()
        for name, (source, _) in self.relations.items():
            self.pool[_key(name)] = linear(widths[source], width, generator=generator)
            self.of_relation[_key(name)] = linear(width, width, generator=generator, bias=False)

    def forward(  # noqa: D102
        self, vectors: Vectors, edges: EdgeLists, num_targets: Mapping[str, int]
    ) -> dict[str, Tensor]:
        found = self._own_of(vectors, num_targets)
        for name, (source, target) in self.relations.items():
            pooled = self.pool[_key(name)](vectors[source]).relu()
            best = aggregate(pooled, *edges[name], "max")
            found[target] = found[target] + self.of_relation[_key(name)](best)
        return found


class GCNLayer(GraphLayer):
    """The mean of a node and its neighbours, with one matrix for both."""

    def _build_relations(
        self, widths: Mapping[str, int], width: int, generator: torch.Generator
    ) -> None:
        between = [name for name, (source, target) in self.relations.items() if source != target]
        self._matrices(between, widths, width, generator)

    def forward(  # noqa: D102
        self, vectors: Vectors, edges: EdgeLists, num_targets: Mapping[str, int]
    ) -> dict[str, Tensor]:
        sums = {kind: vectors[kind][: num_targets[kind]] for kind in self.targets}
        counts = {kind: own.new_ones(own.shape[0], 1) for kind, own in sums.items()}
        others: dict[str, Tensor] = {}
        for name, (source, target) in self.relations.items():
            degrees = edges[name][0].diff().unsqueeze(1).to(counts[target].dtype)
            total = aggregate(vectors[source], *edges[name], "mean") * degrees
            counts[target] = counts[target] + degrees
            if source == target:
                sums[target] = sums[target] + total
            else:
                projected = self.of_relation[_key(name)](total)
                others[target] = others[target] + projected if target in others else projected
        found: dict[str, Tensor] = {}
        for kind, layer in zip(self.targets, self.own, strict=True):
            assert isinstance(layer, nn.Linear)
            total = sums[kind] @ layer.weight.T
            if kind in others:
                total = total + others[kind]
            found[kind] = total / counts[kind] + layer.bias
        return found


AGGREGATIONS: dict[str, type[GraphLayer]] = {"mean": MeanLayer, "gcn": GCNLayer, "max": MaxLayer}


def _key(name: str) -> str:
    """A relation as a key of a module: no name of an attribute, and without dots."""
    return "r_" + name.replace("_", "__").replace(".", "_-")
