"""Computing the vectors of many nodes of a graph, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from outsize.contracts.neighborhood import Neighborhood
from outsize.ranks.collectives import check_stop_together, gather_rows, rank, world_size

if TYPE_CHECKING:
    from outsize.models.graph_model import GraphModel


@runtime_checkable
class OneHop(Protocol):
    """Samples one hop of a graph; `NeighborSampler(graph, [-1])` is one."""

    graph: Any

    def sample(self, seeds: NDArray[np.int64], node_type: str, number: int = 0) -> Neighborhood:
        """The neighbourhood of seeds."""


@torch.no_grad()
def encode_whole_graph(
    model: GraphModel, sampler: OneHop, node_type: str, nodes: Any, max_edges: int
) -> Float[Tensor, "n dim"]:
    """See `GraphModel.encode_all`.

    Ranks take turns with the chunks of a layer and send each other the vectors: every rank ends
    with all of them. Each layer so sends (ranks − 1) times its vectors.
    """
    num_nodes = sampler.graph.nodes[node_type].num_nodes
    wanted = np.arange(num_nodes) if nodes is None else np.asarray(nodes, np.int64)
    found = LayerVectors({}, {})
    for layer in encode_layers(model, sampler, {node_type: wanted}, max_edges):
        found = layer
    # Finished before repeats are taken, so that each node is finished once.
    finished = LayerVectors({node_type: model.finish(found.vectors[node_type])}, found.places)
    return finished.of(node_type, wanted)


@dataclass(frozen=True)
class LayerVectors:
    """The vectors of nodes after a layer.

    Attributes:
        vectors: Node type → vectors.
        places: Node type → where each node's vector is; −1 if it has none.
    """

    vectors: Mapping[str, Tensor]
    places: Mapping[str, Tensor]

    def of(self, kind: str, ids: NDArray[np.int64]) -> Float[Tensor, "n width"]:
        """The vectors of nodes of a type, which must be among those that were asked for."""
        vectors = self.vectors[kind]
        places = self.places[kind][torch.from_numpy(ids)].to(vectors.device)
        return vectors.index_select(0, places)


@torch.no_grad()
def encode_layers(
    model: GraphModel,
    sampler: OneHop,
    wanted: Mapping[str, NDArray[np.int64]],
    max_edges: int,
    num_layers: int | None = None,
) -> Iterator[LayerVectors]:
    """The vectors of nodes after each layer, from the first on.

    Args:
        model: The model.
        sampler: Samples one hop.
        wanted: Node type → ids; their vectors are there after every layer that computes the type.
        max_edges: Edges per chunk.
        num_layers: How many layers; by default all.
    """
    weights = (weight.device for weight in model.parameters())
    graph, device = sampler.graph, next(weights, torch.device("cpu"))
    targets_by_layer = model.types_by_layer[1:][:num_layers]
    vectors: dict[str, Tensor] = {}
    places: dict[str, Tensor] = {}
    needed = _needed_nodes(targets_by_layer, graph, wanted, max_edges)
    for number, targets in enumerate(needed):
        found: dict[str, Tensor] = {}
        for kind, ids in targets.items():
            found[kind] = _encode_layer(
                model, sampler, number, kind, ids, (vectors, places), max_edges, device
            )
        vectors = found
        places = {kind: _places(ids, graph.nodes[kind].num_nodes) for kind, ids in targets.items()}
        yield LayerVectors(vectors, places)


def _encode_layer(
    model: GraphModel,
    sampler: OneHop,
    number: int,
    kind: str,
    ids: NDArray[np.int64],
    before: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
    max_edges: int,
    device: torch.device,
) -> Float[Tensor, "n width"]:
    """The vectors of nodes of one type after a layer.

    Args:
        model: The model.
        sampler: Samples one hop.
        number: Which layer.
        kind: The type.
        ids: The nodes.
        before: Node type → vectors after the layer before, and where each node's is; empty before
            the first layer.
        max_edges: Edges per chunk.
        device: Where the model is.
    """
    vectors, places = before
    parts: list[Tensor] = []
    chunks = list(_chunks(sampler.graph, kind, ids, max_edges))
    empty = slice(0, 0)
    for first in range(0, max(1, len(chunks)), world_size()):
        check_stop_together(device)
        own = first + rank()
        # A rank without a chunk takes part: reading rows may be collective.
        chunk = chunks[own] if own < len(chunks) else empty
        neighborhood = sampler.sample(ids[chunk], kind)
        on_device = neighborhood.to(device)
        if number == 0:
            inputs = model.read(on_device)
        else:
            inputs = {
                name: vectors[name].index_select(
                    0, places[name][neighborhood.nodes[name]].to(device)
                )
                for name in vectors
            }
        found = model.apply_layer(number, inputs, on_device, 0)[kind]
        parts.extend(gather_rows(found))
    return torch.cat(parts)


def _needed_nodes(
    targets_by_layer: list[list[str]],
    graph: Any,
    wanted: Mapping[str, NDArray[np.int64]],
    max_edges: int,
) -> list[dict[str, NDArray[np.int64]]]:
    """The nodes that each layer computes, ascending, by type."""
    if not targets_by_layer:
        return []
    marks = {kind: np.zeros(nodes.num_nodes, bool) for kind, nodes in graph.nodes.items()}
    for kind, ids in wanted.items():
        marks[kind][ids] = True
    *earlier, last = targets_by_layer
    needed = [_marked(marks, last)]
    for kinds in reversed(earlier):
        for kind, ids in needed[0].items():
            for chunk in _chunks(graph, kind, ids, max_edges):
                for relation in graph.relations.values():
                    if relation.target == kind:
                        marks[relation.source][_sources_of(relation, ids[chunk])] = True
        needed.insert(0, _marked(marks, kinds))
    return needed


def _marked(
    marks: Mapping[str, NDArray[np.bool_]], kinds: list[str]
) -> dict[str, NDArray[np.int64]]:
    return {kind: np.flatnonzero(marks[kind]) for kind in kinds}


def _sources_of(relation: Any, nodes: NDArray[np.int64]) -> NDArray[Any]:
    first = relation.starts[nodes]
    sizes = relation.starts[nodes + 1] - first
    ends = sizes.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    edges = np.arange(total) + np.repeat(first - (ends - sizes), sizes)
    sources: NDArray[Any] = relation.sources[edges]
    return sources


def _chunks(graph: Any, kind: str, ids: NDArray[np.int64], max_edges: int) -> Iterator[slice]:
    """Divide nodes so that each part has at most `max_edges` edges and nodes, or one node."""
    degrees = np.ones(len(ids), np.int64)
    for relation in graph.relations.values():
        if relation.target == kind:
            degrees += relation.starts[ids + 1] - relation.starts[ids]
    ends, first = degrees.cumsum(), 0
    while first < len(ids):
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + max_edges, side="right")))
        yield slice(first, stop)
        first = stop


def _places(ids: NDArray[np.int64], num_nodes: int) -> Tensor:
    """Where each node is among some; −1 for the others."""
    places = torch.full((num_nodes,), -1)
    places[torch.from_numpy(ids)] = torch.arange(len(ids))
    return places
