"""Sampling the neighbourhood of seed nodes, hop by hop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.contracts.bags import Bag
from outsize.contracts.neighborhood import Edges, Neighborhood
from outsize.data.graphs.graph import Graph, IdBags
from outsize.errors import ConfigError, DataError
from outsize.hashing import derive_seed
from outsize.kernels.neighbors.draws import ALL, draw_kernels, draw_neighbors
from outsize.kernels.neighbors.found import found_nodes


class NeighborSampler:
    """Samples neighbourhoods of a graph.

    A node's neighbours are drawn uniformly and without replacement, independently for every
    `number`. Draws depend on the seed, the number, the relation and the node alone: ranks that
    sample parts of one batch draw what one process draws for all of it, if all hops have the same
    fan-out.

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
        num_edges = sum(relation.num_edges for relation in graph.relations.values())
        self._is_compiled = draw_kernels(num_edges) is not None

    def sample(self, seeds: NDArray[np.int64], node_type: str, number: int = 0) -> Neighborhood:
        """Sample the neighbourhood of seeds.

        Args:
            seeds: Ids of nodes, in any order, possibly with repeats.
            node_type: Their type.
            number: Of the draw, such as the step.
        """
        self._require_nodes(seeds, node_type)
        kinds, relations = self.graph.nodes, self.graph.relations
        found = {
            kind: found_nodes(kind, nodes.num_nodes, compiled=self._is_compiled)
            for kind, nodes in kinds.items()
        }
        drawn = {name: _Drawn() for name in relations}
        positions = found[node_type].add(seeds)
        within = {kind: [0, len(nodes)] for kind, nodes in found.items()}
        for fan_out in self.fan_out:
            new = {kind: nodes.since(within[kind][-2]) for kind, nodes in found.items()}
            for name, relation in relations.items():
                starts, sources = draw_neighbors(
                    relation.starts,
                    relation.sources,
                    new[relation.target],
                    fan_out,
                    derive_seed(self.seed, name, number),
                )
                drawn[name].add(starts, found[relation.source].add(sources))
            for kind, nodes in found.items():
                within[kind].append(len(nodes))
        ids = {kind: nodes.since(0).copy() for kind, nodes in found.items()}
        for nodes in found.values():
            nodes.release()
        return Neighborhood(
            {kind: torch.from_numpy(nodes) for kind, nodes in ids.items()},
            {kind: tuple(counts[1:]) for kind, counts in within.items()},
            {
                name: drawn[name].edges(within[relation.target][1:-1])
                for name, relation in relations.items()
            },
            node_type,
            torch.from_numpy(positions),
            {
                kind: {name: _bag(bags, ids[kind]) for name, bags in nodes.attributes.items()}
                for kind, nodes in kinds.items()
            },
            number,
        )

    def _require_nodes(self, seeds: NDArray[np.int64], node_type: str) -> None:
        num_nodes = self.graph.nodes[node_type].num_nodes
        if seeds.size and not 0 <= seeds.min() <= seeds.max() < num_nodes:
            raise DataError(
                f"seeds are {seeds.min()} … {seeds.max()}, but nodes of type {node_type!r} are "
                f"0 … {num_nodes - 1}"
            )


class _Drawn:
    """The edges of one relation, hop by hop."""

    def __init__(self) -> None:
        self._starts = [np.zeros(1, np.int64)]
        self._sources: list[NDArray[np.int64]] = []
        self._num_edges = 0

    def add(self, starts: NDArray[np.int64], sources: NDArray[np.int64]) -> None:
        """Append the edges of the targets of one hop."""
        self._starts.append(starts[1:] + self._num_edges)
        self._sources.append(sources)
        self._num_edges += len(sources)

    def edges(self, num_targets: list[int]) -> Edges:
        """All edges, given how many targets lie within 0, 1, … hops."""
        starts = np.concatenate(self._starts)
        return Edges(
            torch.from_numpy(starts),
            torch.from_numpy(np.concatenate(self._sources)),
            tuple(num_targets),
            tuple(int(starts[count]) for count in num_targets),
        )


def _bag(bags: IdBags, nodes: NDArray[np.int64]) -> Bag:
    """The bags of some nodes."""
    starts, values = draw_neighbors(bags.starts, bags.values, nodes, ALL, seed=0)
    return Bag(torch.from_numpy(values), torch.from_numpy(starts[:-1]))
