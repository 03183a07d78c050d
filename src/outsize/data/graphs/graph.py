"""A graph whose nodes have ids but no features, except bags of ids.

Edges are grouped by their target, because a node's vector is computed from the nodes that point to
it. Arrays may be memory-mapped, so a graph may be larger than memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from outsize.contracts.neighborhood import GraphSchema
from outsize.data.click_data import Split

Ids = NDArray[Any]  # int32 or int64, possibly memory-mapped


@dataclass(frozen=True)
class IdBags:
    """A sparse attribute: a bag of ids per node, such as the words of a product.

    Attributes:
        starts: Start of each node's ids in `values`, and the end of the last; int64.
        values: The ids of all nodes, from 0 to `num_ids` − 1.
        num_ids: Number of different ids.
        names: The raw value of each id, a pyarrow array; `None` if they are the ids.
    """

    starts: NDArray[np.int64]
    values: Ids
    num_ids: int
    names: Any = field(default=None, repr=False)


@dataclass(frozen=True)
class NodeType:
    """The nodes of one type.

    Attributes:
        num_nodes: Their number; ids are 0 … num_nodes − 1.
        attributes: Name → the bags of the nodes.
        names: The raw id of each node, a pyarrow array; `None` if they are the ids.
    """

    num_nodes: int
    attributes: Mapping[str, IdBags] = field(default_factory=dict)
    names: Any = field(default=None, repr=False)


@dataclass(frozen=True)
class Relation:
    """The edges of one relation, grouped by their target.

    Attributes:
        source: The node type of sources.
        target: The node type of targets.
        starts: Start of each target's edges in `sources`, and the end of the last; int64.
        sources: The source of each edge, ascending for each target.
    """

    source: str
    target: str
    starts: NDArray[np.int64]
    sources: Ids

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.sources)


@dataclass(frozen=True)
class Graph:
    """Nodes and relations.

    Attributes:
        nodes: Node type by name.
        relations: Relation by name.
    """

    nodes: Mapping[str, NodeType]
    relations: Mapping[str, Relation]

    @property
    def schema(self) -> GraphSchema:
        """Its node types and relations."""
        return GraphSchema(
            {kind: tuple(nodes.attributes) for kind, nodes in self.nodes.items()},
            {name: (edges.source, edges.target) for name, edges in self.relations.items()},
        )


@dataclass(frozen=True)
class NodeLabels:
    """What is to be predicted for the nodes of one type.

    Attributes:
        node_type: The type of the labelled nodes.
        classes: `(num_nodes,)` class of each node, −1 if it has no label; or `(num_nodes, C)` of
            0 and 1, where a node may have several classes.
        class_names: The classes, in order.
        best_accuracy: The best accuracy that any model can reach, where the labels were made.
    """

    node_type: str
    classes: NDArray[Any]
    class_names: tuple[str, ...]
    best_accuracy: float | None = None

    @property
    def is_multi_label(self) -> bool:
        """Whether a node may have several classes."""
        return self.classes.ndim == 2


@dataclass(frozen=True)
class GraphData:
    """A graph with what is to be learned on it.

    Attributes:
        graph: The graph. If edges are held out for link prediction, it is without them.
        fingerprint: Changes when the data does; a run resumes on the same data only.
        labels: The labels of nodes, for node classification.
        labelled: Split → the labelled nodes in it.
        links: Split → `(2, n)` sources and targets of edges of `link_relation`, for link
            prediction. Those of the training split are in the graph, the others are not.
        link_relation: The relation whose edges are predicted.
    """

    graph: Graph
    fingerprint: str
    labels: NodeLabels | None = None
    labelled: Mapping[Split, NDArray[np.int64]] = field(default_factory=dict)
    links: Mapping[Split, NDArray[np.int64]] = field(default_factory=dict)
    link_relation: str | None = None


class GraphDataConfig(ABC):
    """The configuration of a source of graphs; `build` makes the source."""

    task: ClassVar[str] = "graph"

    @abstractmethod
    def build(self) -> GraphData:
        """Open or generate the data."""

    def memory_needs(self) -> dict[str, int]:
        """The memory that `build` needs, in bytes per part; empty if unknown."""
        return {}
