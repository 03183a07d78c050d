"""What a graph model reads in one step: nodes, and the sampled edges between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.contracts.bags import Bag


@dataclass(frozen=True)
class GraphSchema:
    """The node types and relations of a graph, without its nodes and edges.

    Attributes:
        nodes: Node type → the names of its attributes.
        relations: Relation → the node types of its sources and its targets.
    """

    nodes: Mapping[str, tuple[str, ...]]
    relations: Mapping[str, tuple[str, str]]

    def types_by_layer(self, output_types: Iterable[str], num_layers: int) -> list[list[str]]:
        """The node types that each layer computes, if the last computes `output_types`.

        Returns:
            One list per layer from the first to the last, after the list of those that are read.
        """
        needed = [set(output_types)]
        for _ in range(num_layers):
            last = needed[0]
            sources = {source for source, target in self.relations.values() if target in last}
            needed.insert(0, last | sources)
        return [[kind for kind in self.nodes if kind in types] for types in needed]

    def features_of(self, node_type: str) -> tuple[str, ...]:
        """The features of a node type: its ids, then its attributes."""
        return (node_type, *(feature_of(node_type, name) for name in self.nodes[node_type]))


def feature_of(node_type: str, attribute: str) -> str:
    """The name of the feature that an attribute is."""
    return f"{node_type}-{attribute}"


@dataclass(frozen=True)
class Edges:
    """The edges of one relation, grouped by their target.

    Attributes:
        starts: Start of each target's edges in `sources`, and the end of the last.
        sources: The source of each edge.
        num_targets: How many of the targets lie within 0, 1, …, L − 1 hops of the seeds.
        num_edges: How many edges these have.
    """

    starts: Int64[Tensor, " targets_and_one"]
    sources: Int64[Tensor, " edges"]
    num_targets: tuple[int, ...]
    num_edges: tuple[int, ...]

    def within(self, hops: int) -> tuple[Int64[Tensor, " _"], Int64[Tensor, " _"]]:
        """`starts` and `sources` of the targets within some hops of the seeds."""
        return self.starts[: self.num_targets[hops] + 1], self.sources[: self.num_edges[hops]]

    def to(self, device: torch.device | str) -> Edges:
        """The same on another device."""
        starts, sources = (t.to(device, non_blocking=True) for t in (self.starts, self.sources))
        return replace(self, starts=starts, sources=sources)


@dataclass(frozen=True)
class Neighborhood:
    """Seed nodes with all nodes and edges that their vectors are computed from.

    Nodes of each type are distinct and stand in the order of their distance: the seeds, then those
    that were found at the first hop, and so on. Each node's edges are drawn once, when it is found,
    so a layer reads the edges of a prefix of the nodes. A model of L layers computes

        layer 1 for the nodes within L − 1 hops, …, layer L for the seeds.

    Attributes:
        nodes: Node type → the ids of its nodes.
        within: Node type → how many of them lie within 0, 1, …, L hops.
        edges: Relation → the edges of nodes within L − 1 hops; sources and targets are positions in
            `nodes` of their types.
        seed_type: The type of the seeds.
        seeds: Where each seed that was asked for stands among the nodes; repeats are allowed.
        attributes: Node type → attribute → the bag of each node.
        number: Of the draw, such as the step; what else is random in a step depends on it, too.
    """

    nodes: Mapping[str, Int64[Tensor, " _"]]
    within: Mapping[str, tuple[int, ...]]
    edges: Mapping[str, Edges]
    seed_type: str
    seeds: Int64[Tensor, " seeds"]
    attributes: Mapping[str, Mapping[str, Bag]] = field(default_factory=dict)
    number: int = 0

    @property
    def num_layers(self) -> int:
        """Number of hops that were sampled."""
        return len(self.within[self.seed_type]) - 1

    def to(self, device: torch.device | str) -> Neighborhood:
        """The same on another device."""

        def move(values: Tensor) -> Tensor:
            return values.to(device, non_blocking=True)

        return Neighborhood(
            {kind: move(nodes) for kind, nodes in self.nodes.items()},
            self.within,
            {name: edges.to(device) for name, edges in self.edges.items()},
            self.seed_type,
            move(self.seeds),
            {
                kind: {name: bag.to(device) for name, bag in bags.items()}
                for kind, bags in self.attributes.items()
            },
            self.number,
        )
