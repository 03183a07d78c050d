"""Real graphs as sources of data: nodes have ids only, edges point both ways.

Labelled nodes are divided 60 : 20 : 20 by a hash of their ids, or as the data set says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.data.click_data import SPLITS, Split
from outsize.data.graphs.graph import (
    Graph,
    GraphData,
    GraphDataConfig,
    NodeLabels,
    NodeType,
    Relation,
)
from outsize.hashing import derive_seed, uniform_at

_LEAST_PAPERS = 500
Array = NDArray[Any]


@dataclass(frozen=True)
class RealGraphConfig(GraphDataConfig):
    """A graph from a folder of files.

    Attributes:
        name: A key of `GRAPHS`.
        folder: Where its files are.
    """

    name: str = "cora"
    folder: str = ""

    def build(self) -> GraphData:  # noqa: D102
        graph, node_type, classes, masks = GRAPHS[self.name](Path(self.folder))
        labelled = split_of(classes) if masks is None else masks
        digest = hashlib.sha256(classes.tobytes())
        for relation in graph.relations.values():
            digest.update(relation.starts.tobytes() + relation.sources.tobytes())
        names = tuple(str(number) for number in range(int(classes.max()) + 1))
        labels = NodeLabels(node_type, classes, names)
        return GraphData(graph, digest.hexdigest(), labels, labelled)


def split_of(classes: Array) -> dict[Split, Array]:
    """The labelled nodes of each split."""
    keys = torch.arange(len(classes)) + derive_seed(0, "split")
    place = np.digitize(uniform_at(keys, torch.float64).numpy(), (0.6, 0.8))
    return {
        split: np.flatnonzero((place == number) & (classes >= 0))
        for number, split in enumerate(SPLITS)
    }


def _relation(source: str, target: str, sources: Array, targets: Array, sizes: Any) -> Relation:
    """Distinct edges, grouped by target."""
    keys = np.unique(targets.astype(np.int64) * sizes[source] + sources)
    counts = np.bincount(keys // sizes[source], minlength=sizes[target])
    starts = np.concatenate((np.zeros(1, np.int64), counts.cumsum()))
    return Relation(source, target, starts, (keys % sizes[source]).astype(np.int32))


def _undirected(edges: Array, num_nodes: int) -> Graph:
    edges = edges[edges[:, 0] != edges[:, 1]]
    both = np.concatenate((edges, edges[:, ::-1]))
    relation = _relation("node", "node", both[:, 0], both[:, 1], {"node": num_nodes})
    return Graph({"node": NodeType(num_nodes)}, {"edge": relation})


Loaded = tuple[Graph, str, Array, dict[Split, Array] | None]


def _edges_npz(name: str, labels: str = "labels", masks: bool = False) -> Callable[[Path], Loaded]:
    def load(folder: Path) -> Loaded:
        with np.load(folder / name) as file:
            classes = file[labels].astype(np.int64)
            graph = _undirected(file["edges"].astype(np.int64), len(classes))
            given: dict[Split, Array] | None = None
            if masks:
                names = {"train": "train_masks", "validation": "val_masks", "test": "test_masks"}
                given = {split: np.flatnonzero(file[names[split]][0]) for split in SPLITS}
        return graph, "node", classes, given

    return load


def _planetoid(name: str) -> Callable[[Path], Loaded]:
    def load(folder: Path) -> Loaded:
        with np.load(folder / name) as file:
            classes = file["labels"].astype(np.int64)
            targets = np.repeat(np.arange(len(classes)), np.diff(file["adj_indptr"]))
            edges = np.stack((targets, file["adj_indices"].astype(np.int64)), axis=1)
        return _undirected(edges, len(classes)), "node", classes, None

    return load


def _debian(folder: Path) -> Loaded:
    import pyarrow.parquet as pq

    nodes = pq.read_table(folder / "debian_trixie_nodes.parquet", columns=["section"])
    edges = pq.read_table(folder / "debian_trixie_edges.parquet", columns=["src", "dst"])
    _, classes = np.unique(nodes["section"].to_numpy().astype(str), return_inverse=True)
    pairs = np.stack([edges[name].to_numpy() for name in ("src", "dst")], axis=1)
    return _undirected(pairs.astype(np.int64), len(classes)), "node", classes, None


def _acl(folder: Path) -> Loaded:
    """Papers and authors; the class of a paper is its venue, if that has 500 papers or more."""
    import pyarrow.parquet as pq

    papers = pq.read_table(folder / "acl_papers.parquet", columns=["venue"])
    edges = pq.read_table(folder / "acl_paper_author_edges.parquet", columns=["paper", "author"])
    venues = papers["venue"].to_numpy(zero_copy_only=False).astype(str)
    names, inverse, counts = np.unique(venues, return_inverse=True, return_counts=True)
    numbers = np.full(len(names), -1)
    large = counts >= _LEAST_PAPERS
    numbers[large] = np.arange(large.sum())
    paper, author = (edges[name].to_numpy().astype(np.int64) for name in ("paper", "author"))
    sizes = {"paper": len(venues), "author": int(author.max()) + 1}
    relations = {
        "writes": _relation("author", "paper", author, paper, sizes),
        "written-by": _relation("paper", "author", paper, author, sizes),
    }
    graph = Graph({kind: NodeType(size) for kind, size in sizes.items()}, relations)
    return graph, "paper", numbers[inverse], None


GRAPHS: dict[str, Callable[[Path], Loaded]] = {
    "cora": _planetoid("cora.npz"),
    "citeseer": _planetoid("citeseer.npz"),
    "tolokers": _edges_npz("tolokers.npz", "node_labels", masks=True),
    "musae_facebook": _edges_npz("musae_facebook.npz"),
    "musae_github": _edges_npz("musae_github.npz"),
    "debian_trixie": _debian,
    "acl": _acl,
}
