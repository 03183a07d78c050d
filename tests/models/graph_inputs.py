"""Small random graphs for tests of graph models."""

import numpy as np
import torch

import outsize
from outsize.data.graphs.graph import Graph, IdBags, NodeType, Relation


def relation(source, target, sources, targets, num_targets):
    """A relation from a list of edges."""
    order = np.lexsort((sources, targets))
    counts = np.bincount(targets, minlength=num_targets)
    starts = np.concatenate(([0], counts.cumsum())).astype(np.int64)
    return Relation(source, target, starts, np.asarray(sources)[order].astype(np.int64))


def one_type(num_nodes=30, num_edges=80, seed=0):
    """A graph of one type with repeated edges, self loops and isolated nodes."""
    draw = np.random.default_rng(seed)
    sources, targets = draw.integers(0, num_nodes * 3 // 4, (2, num_edges))
    edges = relation("node", "node", sources, targets, num_nodes)
    return Graph({"node": NodeType(num_nodes)}, {"edge": edges})


def several_types(seed=0):
    """Papers, authors and venues; papers have words, and authors have no edges to venues."""
    draw = np.random.default_rng(seed)
    sizes = {"paper": 25, "author": 12, "venue": 3}
    lengths = draw.integers(0, 4, sizes["paper"])
    words = IdBags(
        np.concatenate(([0], lengths.cumsum())).astype(np.int64),
        draw.integers(0, 9, lengths.sum()),
        9,
    )
    nodes = {kind: NodeType(size) for kind, size in sizes.items()}
    nodes["paper"] = NodeType(sizes["paper"], {"words": words})

    def edges(source, target, number):
        ends = [draw.integers(0, sizes[kind], number) for kind in (source, target)]
        return relation(source, target, *ends, sizes[target])

    relations = {
        "cites": edges("paper", "paper", 40),
        "cited.by": edges("paper", "paper", 40),
        "writes": edges("author", "paper", 30),
        "written_by": edges("paper", "author", 30),
        "publishes": edges("venue", "paper", 25),
    }
    return Graph(nodes, relations)


def features_of(graph):
    """The features of a graph with the number of ids of each."""
    sizes = {}
    for kind, nodes in graph.nodes.items():
        sizes[kind] = nodes.num_nodes
        for name, bags in nodes.attributes.items():
            sizes[f"{kind}-{name}"] = bags.num_ids
    return sizes


def embeddings_of(graph, dim=4, over="store"):
    """A collection with a table for each node type and attribute."""
    specs = [outsize.TableSpec(name, size, dim) for name, size in features_of(graph).items()]
    features = [outsize.FeatureSpec(spec.name, pooling="mean") for spec in specs]
    if over == "store":
        return outsize.EmbeddingCollection(features, outsize.LocalStore(specs))
    tables = {spec.name: outsize.build_table("full", spec) for spec in specs}
    return outsize.EmbeddingCollection(features, tables)


def all_rows(embeddings):
    """Table → its rows."""
    found = {}
    for feature in embeddings.features:
        num_rows = embeddings.spec_of(feature).num_rows
        rows = torch.arange(num_rows)
        found[feature.name] = embeddings.eval()({feature.name: rows}, [feature.name])[feature.name]
    embeddings.train()
    return found
