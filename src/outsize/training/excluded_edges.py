"""Leaving edges out of a sampled neighbourhood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from outsize.contracts.neighborhood import Edges, Neighborhood
from outsize.data.graphs.graph import Graph, Relation

Pairs = tuple[Int64[Tensor, " _"], Int64[Tensor, " _"]]
_ID_BITS = 32
_MOST_TRIED = 1000


def without_edges(
    neighborhood: Neighborhood, graph: Graph, excluded: Mapping[str, Pairs]
) -> Neighborhood:
    """The same neighbourhood without some edges, wherever they were drawn; its nodes stay.

    Args:
        neighborhood: The neighbourhood, in main memory.
        graph: The graph it was drawn from.
        excluded: Relation → sources and targets of the edges, as ids of nodes.
    """
    edges = dict(neighborhood.edges)
    for name, (sources, targets) in excluded.items():
        relation, drawn = graph.relations[name], edges[name]
        ids = neighborhood.nodes
        lines = torch.arange(drawn.starts.shape[0] - 1).repeat_interleave(drawn.starts.diff())
        keys = _keys(ids[relation.source][drawn.sources], ids[relation.target][lines])
        stays = ~torch.isin(keys, _keys(sources, targets))
        num_before = torch.cat((stays.new_zeros(1, dtype=torch.int64), stays.cumsum(0)))
        starts = num_before[drawn.starts]
        counts = tuple(int(starts[count]) for count in drawn.num_targets)
        edges[name] = Edges(starts, drawn.sources[stays], drawn.num_targets, counts)
    return replace(neighborhood, edges=edges)


def relations_with_links_reversed(
    graph: Graph, name: str, links: NDArray[np.int64]
) -> tuple[str, ...]:
    """The relations that hold the links of a relation in the other direction.

    An undirected relation is one itself. Evenly spaced links are looked up, 1,000 at most.

    Args:
        graph: The graph, with the links in it.
        name: The relation of the links.
        links: `(2, n)` sources and targets.
    """
    wanted = graph.relations[name]
    some = links[:, :: -(-links.shape[1] // _MOST_TRIED) or 1]
    return tuple(
        other
        for other, relation in graph.relations.items()
        if (relation.source, relation.target) == (wanted.target, wanted.source)
        and all(_has_edge(relation, target, source) for source, target in some.T.tolist())
    )


def _has_edge(relation: Relation, source: int, target: int) -> bool:
    sources = relation.sources[relation.starts[target] : relation.starts[target + 1]]
    place = int(np.searchsorted(sources, source))
    return place < len(sources) and bool(sources[place] == source)


def _keys(sources: Int64[Tensor, " n"], targets: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    return (sources << _ID_BITS) | targets
