"""Graphs: nodes of several types, edges of several relations, labels and splits."""

from outsize.data.graphs.graph import (
    Graph,
    GraphData,
    GraphDataConfig,
    IdBags,
    NodeLabels,
    NodeType,
    Relation,
)
from outsize.data.graphs.links import LinkSplit
from outsize.data.graphs.synthetic import SyntheticGraphConfig

__all__ = [
    "Graph",
    "GraphData",
    "GraphDataConfig",
    "IdBags",
    "LinkSplit",
    "NodeLabels",
    "NodeType",
    "Relation",
    "SyntheticGraphConfig",
]
