"""What a graph model reads in one step: nodes, and the sampled edges between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.contracts.bags import Bag


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
    """

    nodes: Mapping[str, Int64[Tensor, " _"]]
    within: Mapping[str, tuple[int, ...]]
    edges: Mapping[str, Edges]
    seed_type: str
    seeds: Int64[Tensor, " seeds"]
    attributes: Mapping[str, Mapping[str, Bag]] = field(default_factory=dict)

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
        )
