"""Sampling the neighbourhood of seed nodes, hop by hop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.contracts.bags import Bag
from outsize.contracts.neighborhood import Edges, Neighborhood
from outsize.data.graphs.graph import Graph, IdBags
from outsize.errors import ConfigError
from outsize.hashing import derive_seed
from outsize.kernels.neighbors.draws import ALL, draw_neighbors


class NeighborSampler:
    """Samples neighbourhoods of a graph.

    A node's neighbours are drawn uniformly and without replacement, anew for every `number`. Draws
    depend on the seed, the number, the relation and the node alone: ranks that sample parts of one
    batch draw what one process draws for all of it, if all hops have the same fan-out.

    Args:
        graph: The graph.
        fan_out: Neighbours per relation and hop, from the seeds outwards; −1 for all of them.
        seed: Seed of the draws.
    """

    def __init__(self, graph: Graph, fan_out: Sequence[int], seed: int = 0) -> None:
        if not fan_out or any(f < 1 and f != ALL for f in fan_out):
            raise ConfigError(
                f"fan_out needs a number of neighbours for each hop, or -1 for all of them, but "
                f"got {list(fan_out)}"
            )
        self.graph = graph
        self.fan_out = tuple(fan_out)
        self.seed = seed

    def sample(self, seeds: NDArray[np.int64], node_type: str, number: int = 0) -> Neighborhood:
        """Sample the neighbourhood of seeds.

        Args:
            seeds: Ids of nodes, in any order, possibly with repeats.
            node_type: Their type.
            number: Of the draw, such as the step.
        """
        found = {kind: _Found() for kind in self.graph.nodes}
        positions = found[node_type].add(seeds)
        starts = {name: [np.zeros(1, np.int64)] for name in self.graph.relations}
        sources: dict[str, list[NDArray[np.int64]]] = {name: [] for name in self.graph.relations}
        within = {kind: [len(nodes)] for kind, nodes in found.items()}
        for fan_out in self.fan_out:
            new = {kind: nodes.new() for kind, nodes in found.items()}
            for name, relation in self.graph.relations.items():
                seed = derive_seed(self.seed, name, number)
                ends, drawn = draw_neighbors(
                    relation.starts, relation.sources, new[relation.target], fan_out, seed
                )
                starts[name].append(ends[1:] + sum(map(len, sources[name])))
                sources[name].append(found[relation.source].add(drawn))
            for kind, nodes in found.items():
                within[kind].append(len(nodes))
        edges = {
            name: _edges(starts[name], sources[name], within[relation.target])
            for name, relation in self.graph.relations.items()
        }
        ids = {kind: nodes.ids() for kind, nodes in found.items()}
        return Neighborhood(
            {kind: torch.from_numpy(nodes) for kind, nodes in ids.items()},
            {kind: tuple(counts) for kind, counts in within.items()},
            edges,
            node_type,
            torch.from_numpy(positions),
            {
                kind: {name: _bag(bags, ids[kind]) for name, bags in nodes.attributes.items()}
                for kind, nodes in self.graph.nodes.items()
            },
            number,
        )


class _Found:
    """The nodes of one type in the order they are found."""

    def __init__(self) -> None:
        self._position: dict[int, int] = {}
        self._num_old = 0

    def __len__(self) -> int:
        return len(self._position)

    def add(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions of ids; those that are not there yet are appended."""
        known = self._position
        return np.array([known.setdefault(i, len(known)) for i in ids.tolist()], np.int64)

    def new(self) -> NDArray[np.int64]:
        """The ids that were added since the last call."""
        first, self._num_old = self._num_old, len(self)
        return self.ids()[first:]

    def ids(self) -> NDArray[np.int64]:
        """All ids."""
        return np.fromiter(self._position, np.int64, len(self))


def _edges(
    starts: list[NDArray[np.int64]], sources: list[NDArray[np.int64]], num_targets: list[int]
) -> Edges:
    ends = np.concatenate(starts)
    counts = tuple(num_targets[:-1])
    return Edges(
        torch.from_numpy(ends),
        torch.from_numpy(np.concatenate(sources)),
        counts,
        tuple(int(ends[count]) for count in counts),
    )


def _bag(bags: IdBags, nodes: NDArray[np.int64]) -> Bag:
    """The bags of some nodes."""
    first = bags.starts[nodes]
    sizes = bags.starts[nodes + 1] - first
    offsets = np.concatenate((np.zeros(1, np.int64), sizes.cumsum()))
    places = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], sizes)
    values = torch.from_numpy(bags.values[places].astype(np.int64))
    return Bag(values, torch.from_numpy(offsets[:-1]))
