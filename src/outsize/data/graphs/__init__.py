"""Graphs: nodes of several types, edges of several relations, labels and splits."""

from outsize.data.graphs.amazon import AmazonConfig
from outsize.data.graphs.edges import EdgesConfig
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
from outsize.data.graphs.node_files import NodeFile
from outsize.data.graphs.npz import NpzGraphConfig
from outsize.data.graphs.ogb import OgbConfig
from outsize.data.graphs.reddit import RedditConfig
from outsize.data.graphs.relation_file import RelationFile
from outsize.data.graphs.synthetic import SyntheticGraphConfig

__all__ = [
    "AmazonConfig",
    "EdgesConfig",
    "Graph",
    "GraphData",
    "GraphDataConfig",
    "IdBags",
    "LinkSplit",
    "NodeFile",
    "NodeLabels",
    "NodeType",
    "NpzGraphConfig",
    "OgbConfig",
    "RedditConfig",
    "Relation",
    "RelationFile",
    "SyntheticGraphConfig",
]
