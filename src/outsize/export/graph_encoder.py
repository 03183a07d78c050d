"""Vectors of nodes that a graph has, and of new nodes through their neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Float32
from numpy.typing import NDArray
from torch import Tensor

from outsize.contracts.bags import Bag
from outsize.contracts.neighborhood import Edges, Neighborhood, feature_of
from outsize.models import GraphModel
from outsize.models.whole_graph import encode_layers

if TYPE_CHECKING:
    from outsize.data.graphs.graph import Graph

_MAX_EDGES = 1 << 18


@dataclass(frozen=True)
class Lists:
    """A list of ids for each of n rows.

    Attributes:
        starts: `(n + 1,)` start of each row's ids in `values`, and the end of the last.
        values: The ids of all rows.
    """

    starts: NDArray[np.int64]
    values: NDArray[np.int64]

    @classmethod
    def of(cls, lengths: NDArray[np.int64], values: NDArray[np.int64]) -> Lists:
        """Lists of some lengths."""
        return cls(np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))), values)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many ids each row has."""
        return np.diff(self.starts)

    def take(self, mask: NDArray[np.bool_]) -> Lists:
        """The lists of some rows."""
        return Lists.of(self.lengths[mask], self.values[np.repeat(mask, self.lengths)])

    def without(self, dropped: NDArray[np.bool_]) -> Lists:
        """The same without some of the values."""
        num_before = np.concatenate((np.zeros(1, np.int64), np.cumsum(~dropped, dtype=np.int64)))
        return Lists(num_before[self.starts], self.values[~dropped])


@dataclass(frozen=True)
class NewNodes:
    """Nodes that a graph does not have, all of one type.

    Attributes:
        count: How many there are.
        neighbors: Relation → the sources of the edges that lead to each of them.
        attributes: Attribute → the ids of each of them.
    """

    count: int
    neighbors: Mapping[str, Lists] = field(default_factory=dict)
    attributes: Mapping[str, Lists] = field(default_factory=dict)

    def take(self, mask: NDArray[np.bool_]) -> NewNodes:
        """The new nodes selected by a mask."""
        return NewNodes(
            int(mask.sum()),
            {name: lists.take(mask) for name, lists in self.neighbors.items()},
            {name: lists.take(mask) for name, lists in self.attributes.items()},
        )


class GraphEncoder:
    """Computes the vectors of nodes with a graph model, as its evaluation does.

    A new node gets the messages of its neighbours, whose own vectors are those of the graph without
    it. In place of the row of its id stands `own_rows`.

    Args:
        model: The model.
        graph: The graph.
        fan_out: Neighbours per relation and hop of nodes of the graph; −1 for all of them.
        seed: Seed of the draws, if not all are taken.
        own_rows: Node type → what stands for the row of a new node's id.
    """

    def __init__(
        self,
        model: GraphModel,
        graph: Graph,
        fan_out: int = -1,
        seed: int = 0,
        own_rows: Mapping[str, Float32[Tensor, " dim"]] | None = None,
    ) -> None:
        from outsize.data.graphs.graph import Graph
        from outsize.data.graphs.sampling import NeighborSampler

        self.model, self.graph = model, graph
        self.own_rows = dict(own_rows or {})
        self._hop = NeighborSampler(graph, [fan_out], seed)
        self._alone = NeighborSampler(Graph(graph.nodes, {}), [1])

    @torch.no_grad()
    def encode(
        self, kind: str, nodes: NDArray[np.int64], new: NewNodes | None = None
    ) -> Float32[Tensor, "n dim"]:
        """The vectors of nodes of a type, on the CPU; in evaluation mode.

        Args:
            kind: The type.
            nodes: Ids of nodes; −1 for new ones.
            new: These, in order.
        """
        was_training = self.model.training
        self.model.eval()
        try:
            found = torch.zeros(len(nodes), self.model.dim)
            is_new = nodes < 0
            if not is_new.all():
                known = nodes[~is_new]
                vectors = self.model.encode_all(self._hop, kind, known, max_edges=_MAX_EDGES)
                found[torch.from_numpy(~is_new)] = vectors.float().cpu()
            if is_new.any():
                assert new is not None
                found[torch.from_numpy(is_new)] = self._encode_new(kind, new).float().cpu()
            self.model.embeddings.raise_if_bad_ids()
            return found
        finally:
            self.model.train(was_training)

    def _encode_new(self, kind: str, new: NewNodes) -> Float[Tensor, "n dim"]:
        neighbors = self._neighbors_of(new)
        neighborhood = self._neighborhood(kind, new, neighbors)
        model, own = self.model, self._inputs(kind, new)
        for number, vectors in enumerate(self._layers(neighbors)):
            own = torch.cat((own.to(vectors[kind].dtype), vectors[kind]))
            own = model.apply_layer(number, {**vectors, kind: own}, neighborhood, 0)[kind]
        return model.finish(own)

    def _layers(
        self, neighbors: Mapping[str, NDArray[np.int64]]
    ) -> Iterator[dict[str, Float[Tensor, "_ _"]]]:
        """The vectors of nodes of the graph before each layer of the model, by type."""
        model = self.model
        read = {}
        for kind in model.types_by_layer[0]:
            neighborhood = self._alone.sample(neighbors[kind], kind)
            read[kind] = model.read(neighborhood.to(self._device))[kind]
        yield read
        for layer in encode_layers(model, self._hop, neighbors, _MAX_EDGES, model.num_layers - 1):
            yield {kind: layer.of(kind, neighbors[kind]) for kind in layer.vectors}

    def _neighbors_of(self, new: NewNodes) -> dict[str, NDArray[np.int64]]:
        """The distinct neighbours, ascending, by type."""
        found: dict[str, list[NDArray[np.int64]]] = {name: [] for name in self.graph.nodes}
        for name, lists in new.neighbors.items():
            found[self.graph.relations[name].source].append(lists.values)
        none = np.zeros(0, np.int64)
        return {name: np.unique(np.concatenate([none, *parts])) for name, parts in found.items()}

    def _neighborhood(
        self, kind: str, new: NewNodes, neighbors: Mapping[str, NDArray[np.int64]]
    ) -> Neighborhood:
        """New nodes as seeds, with their neighbours after them."""
        nodes, within, edges = {}, {}, {}
        for name, ids in neighbors.items():
            first = new.count if name == kind else 0
            nodes[name] = torch.from_numpy(np.concatenate((np.zeros(first, np.int64), ids)))
            within[name] = (first, first + len(ids))
        none = Lists(np.zeros(1, np.int64), np.zeros(0, np.int64))
        for name, relation in self.graph.relations.items():
            num_targets = new.count if relation.target == kind else 0
            lists = new.neighbors.get(name, none)
            if len(lists.starts) != num_targets + 1:
                lists = Lists(np.zeros(num_targets + 1, np.int64), none.values)
            first = new.count if relation.source == kind else 0
            places = first + np.searchsorted(neighbors[relation.source], lists.values)
            starts, sources = torch.from_numpy(lists.starts), torch.from_numpy(places)
            edges[name] = Edges(starts, sources, (num_targets,), (len(places),))
        neighborhood = Neighborhood(nodes, within, edges, kind, torch.arange(new.count))
        return neighborhood.to(self._device)

    def _inputs(self, kind: str, new: NewNodes) -> Float[Tensor, "n width"]:
        """The inputs of new nodes: what stands for the row of an id, and pooled attributes."""
        embeddings, schema = self.model.embeddings, self.model.schema
        width = self.model.input_widths[kind]
        inputs = {}
        for name in schema.nodes[kind]:
            lists = new.attributes.get(name)
            if lists is None:
                lists = Lists(np.zeros(new.count + 1, np.int64), np.zeros(0, np.int64))
            bag = Bag(torch.from_numpy(lists.values), torch.from_numpy(lists.starts[:-1]))
            inputs[feature_of(kind, name)] = bag.to(self._device)
        pooled = embeddings.ragged(inputs, list(inputs)) if inputs else {}
        rest = [pooled[name] for name in inputs]
        own_width = width - sum(part.shape[1] for part in rest)
        own = self.own_rows.get(kind, torch.zeros(own_width)).to(self._device)
        return torch.cat([own.expand(new.count, -1), *rest], dim=1)

    @property
    def _device(self) -> torch.device:
        state = chain(self.model.parameters(), self.model.buffers())
        return next((weight.device for weight in state), torch.device("cpu"))
