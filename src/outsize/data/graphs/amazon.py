"""The Amazon product graph of GraphSAINT, and other graphs in its form.

    adj_full.npz      the adjacency matrix, as scipy saves it
    class_map.json    node → class, or a list of 0 and 1, one for each class
    role.json         "tr", "va" and "te": the nodes of each split

Words of products, if there are any, are a sparse matrix with one row per node, as scipy saves it.
Dense features are left out: nodes have ids and bags of ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.bounds import require_at_least, require_text
from outsize.data.click_data import Split
from outsize.data.encoding.sources import find_files
from outsize.data.graphs.arrays import ArrayFiles
from outsize.data.graphs.assemble import RawGraph, RawRelation
from outsize.data.graphs.class_maps import read_class_map
from outsize.data.graphs.graph import NodeType
from outsize.data.graphs.graph_files import GraphFilesConfig
from outsize.data.graphs.json_stream import JsonStream
from outsize.data.graphs.labels import labelled_splits
from outsize.data.graphs.npz import bags_of_matrix
from outsize.data.graphs.npz_files import NpzFile, SparseMatrix
from outsize.errors import DataError

_ROLES: dict[Split, str] = {"train": "tr", "validation": "va", "test": "te"}


@dataclass(frozen=True)
class AmazonConfig(GraphFilesConfig):
    """The Amazon product graph of GraphSAINT, or another one in its form (Yelp, Flickr, …).

    Attributes:
        path: The folder with its files.
        words: File in the folder with the words of each node, a sparse matrix; they become the
            attribute `words`. By default there are none.
        min_class_size: Nodes of classes with fewer nodes than this are unlabelled.
    """

    path: str
    words: str = ""
    min_class_size: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_text(self, "path")
        require_at_least(self, 1, "min_class_size")

    def files(self) -> list[Path]:  # noqa: D102
        names = [
            "adj_full.npz",
            "class_map.json",
            "role.json",
            *([self.words] if self.words else []),
        ]
        return find_files(tuple(str(Path(self.path) / name) for name in names))

    def read(self, arrays: ArrayFiles) -> RawGraph:  # noqa: D102
        graph, class_map, role, *words = self.files()
        matrix = SparseMatrix(NpzFile(graph))
        num_nodes = matrix.shape[0]
        if matrix.shape[1] != num_nodes:
            raise DataError(f"{graph}: the adjacency matrix is not square: {matrix.shape}")

        def number_of(name: str) -> int | None:
            if not name.isascii() or not name.isdigit() or int(name) >= num_nodes:
                raise DataError(f"{class_map}: {name!r:.60} is not one of {num_nodes:,} nodes")
            return int(name)

        labels, is_labelled = read_class_map(
            class_map, number_of, num_nodes, self.min_class_size
        )  # fmt: skip
        labelled = _roles(role, is_labelled)
        attributes = {}
        if words:
            bags = SparseMatrix(NpzFile(words[0]))
            attributes = {"words": bags_of_matrix(bags, num_nodes, str(words[0]))}
        nodes = {"node": NodeType(num_nodes, attributes)}
        relation = RawRelation("node", "node", matrix.pairs, str(graph))
        return RawGraph(nodes, {"edge": relation}, labels, labelled)


def _roles(path: Path, is_labelled: NDArray[np.bool_]) -> dict[Split, NDArray[np.int64]]:
    members = dict(JsonStream(path).members())
    nodes: dict[Split, NDArray[np.int64]] = {}
    for split, name in _ROLES.items():
        found = members.get(name)
        if not isinstance(found, list) or not all(type(node) is int for node in found):
            raise DataError(f"{path}: {name!r} must be a list of nodes")
        if found and (min(found) < 0 or max(found) >= len(is_labelled)):
            raise DataError(
                f"{path}: {name!r} has the node {max(found):,}, but there are "
                f"{len(is_labelled):,} nodes"
            )
        nodes[split] = np.unique(np.array(found, np.int64))
    return labelled_splits(nodes, is_labelled, str(path))
