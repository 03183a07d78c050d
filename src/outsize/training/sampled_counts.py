"""How often training is expected to read each id of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize.contracts.neighborhood import feature_of
from outsize.data.graphs.csr import target_blocks
from outsize.data.graphs.graph import Graph, Relation

_EDGES_PER_CHUNK = 1 << 22


def expected_reads(
    graph: Graph, seeds: Mapping[str, NDArray[np.int64]], fan_out: Sequence[int]
) -> dict[str, Tensor]:
    """Expected number of reads of each id in one epoch, rounded up.

    A node that is found twice in a batch is read once but counted twice.

    Args:
        graph: The graph.
        seeds: Node type → how often each node is a seed.
        fan_out: Neighbours per relation and hop.

    Returns:
        Feature → a count per id.
    """
    reached = {kind: np.zeros(nodes.num_nodes) for kind, nodes in graph.nodes.items()}
    for kind, seeded in seeds.items():
        reached[kind] += seeded
    total = {kind: counts.copy() for kind, counts in reached.items()}
    for number in fan_out:
        found = {kind: np.zeros_like(counts) for kind, counts in reached.items()}
        for relation in graph.relations.values():
            _spread(relation, reached[relation.target], number, found[relation.source])
        reached = found
        for kind, counts in reached.items():
            total[kind] += counts
    by_feature: dict[str, NDArray[Any]] = {}
    for kind, nodes in graph.nodes.items():
        by_feature[kind] = total[kind]
        for name, bags in nodes.attributes.items():
            weights = np.repeat(total[kind], np.diff(bags.starts))
            by_feature[feature_of(kind, name)] = np.bincount(bags.values, weights, bags.num_ids)
    return {
        name: torch.from_numpy(np.ceil(counts).astype(np.int64))
        for name, counts in by_feature.items()
    }


def _spread(
    relation: Relation, reached: NDArray[np.float64], fan_out: int, found: NDArray[np.float64]
) -> None:
    """Add to `found` how often each source is drawn, if targets are reached as often as given."""
    degrees = np.diff(relation.starts)
    share = np.ones(len(degrees)) if fan_out < 0 else np.minimum(1, fan_out / degrees.clip(1))
    rates = reached * share
    for first, stop in target_blocks(relation.starts, _EDGES_PER_CHUNK):
        sources = relation.sources[relation.starts[first] : relation.starts[stop]]
        found += np.bincount(sources, np.repeat(rates[first:stop], degrees[first:stop]), len(found))
