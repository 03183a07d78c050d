"""The Reddit graph of GraphSAGE, and other graphs in its form.

Either the JSON files of GraphSAGE, where PREFIX is `reddit`, `ppi`, …:

    PREFIX-G.json            nodes with "val" and "test", links by "source" and "target"
    PREFIX-class_map.json    node → class, or a list of 0 and 1

or the two files of DGL:

    reddit_graph.npz         the adjacency matrix, as scipy saves it
    reddit_data.npz          "label", and "node_types": 1 train, 2 validation, 3 test

Nodes without "val" and "test" are in no split. Dense features are left out: nodes have ids.
`PREFIX-id_map.json` numbers the rows of features, so it is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.bounds import require_at_least, require_text
from outsize.data.click_data import SPLITS, Split
from outsize.data.encoding.sources import find_files
from outsize.data.graphs.arrays import ArrayFiles
from outsize.data.graphs.assemble import RawGraph, RawRelation
from outsize.data.graphs.class_maps import read_class_map
from outsize.data.graphs.csr import Pairs
from outsize.data.graphs.graph import NodeLabels, NodeType
from outsize.data.graphs.graph_files import GraphFilesConfig
from outsize.data.graphs.json_stream import JsonStream
from outsize.data.graphs.labels import drop_small_classes, labelled_splits
from outsize.data.graphs.npz_files import NpzFile, SparseMatrix
from outsize.errors import DataError

_LINKS_PER_CHUNK = 1 << 20


@dataclass(frozen=True)
class RedditConfig(GraphFilesConfig):
    """The Reddit graph of GraphSAGE, or another one in its form.

    Attributes:
        path: The folder with its files.
        prefix: What their names begin with.
        min_class_size: Nodes of classes with fewer nodes than this are unlabelled.
    """

    path: str
    prefix: str = "reddit"
    min_class_size: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_text(self, "path", "prefix")
        require_at_least(self, 1, "min_class_size")

    def files(self) -> list[Path]:  # noqa: D102
        folder, prefix = Path(self.path), self.prefix
        forms = (
            (f"{prefix}-G.json", f"{prefix}-class_map.json"),
            (f"{prefix}_graph.npz", f"{prefix}_data.npz"),
        )
        for names in forms:
            if (folder / names[0]).is_file():
                return find_files(tuple(str(folder / name) for name in names))
        raise DataError(f"{folder} has neither {forms[0][0]} nor {forms[1][0]}")

    def read(self, arrays: ArrayFiles) -> RawGraph:  # noqa: D102
        graph, labels = self.files()
        if graph.suffix == ".npz":
            return _read_npz(graph, labels, self.min_class_size)
        return _read_json(graph, labels, self.min_class_size, arrays)


def _read_npz(graph: Path, data: Path, min_class_size: int) -> RawGraph:
    matrix, file = SparseMatrix(NpzFile(graph)), NpzFile(data)
    num_nodes = matrix.shape[0]
    numbers, splits = file.integers("label").reshape(-1), file.integers("node_types").reshape(-1)
    for name, values in (("label", numbers), ("node_types", splits)):
        if len(values) != num_nodes:
            raise DataError(f"{data}: {name} is of {len(values):,} nodes, not {num_nodes:,}")
    names = tuple(map(str, range(int(numbers.max(initial=-1)) + 1)))
    labels = NodeLabels("node", np.maximum(numbers, -1), names)
    labels = drop_small_classes(labels, min_class_size, str(data))
    labelled = labelled_splits(_nodes_of(splits - 1), labels.classes >= 0, str(data))
    relation = RawRelation("node", "node", matrix.pairs, str(graph))
    return RawGraph({"node": NodeType(num_nodes)}, {"edge": relation}, labels, labelled)


def _read_json(graph: Path, class_map: Path, min_class_size: int, arrays: ArrayFiles) -> RawGraph:
    import pyarrow as pa

    reader = _JsonGraph(graph)
    links = arrays.pairs("links", 1 << 40)  # nodes may come after links
    for sources, targets in reader.links():
        links.append(sources, targets)
    if not reader.ids:
        raise DataError(f"{graph}: there is no node in it")
    numbers = {str(name): number for number, name in enumerate(reader.ids)}
    if len(numbers) < len(reader.ids):
        raise DataError(f"{graph}: two nodes have the same id")
    labels, is_labelled = read_class_map(class_map, numbers.get, len(numbers), min_class_size)
    splits = _nodes_of(np.array(reader.splits, np.int8))
    labelled = labelled_splits(splits, is_labelled, str(graph))
    names = pa.array(list(numbers), pa.large_string())
    relation = RawRelation("node", "node", reader.numbered(links.chunks), str(graph))
    return RawGraph(
        {"node": NodeType(len(numbers), {}, names)}, {"edge": relation}, labels, labelled
    )


def _nodes_of(splits: NDArray[Any]) -> dict[Split, NDArray[np.int64]]:
    """The nodes of each split, given the number of each node's split."""
    return {split: np.flatnonzero(splits == number) for number, split in enumerate(SPLITS)}


class _JsonGraph:
    """A graph in networkx's JSON form, whose links name nodes by their place or by their id.

    Attributes:
        ids: The ids of nodes, in order, once all links are read.
        splits: 0 (train), 1 (validation) or 2 (test) for each node; −1 if it has none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.ids: list[Any] = []
        self.splits: list[int] = []
        self._texts: dict[str, int] = {}  # ids in links → −1, −2, …

    def links(self) -> Iterator[Pairs]:
        """The ends of links, as they are; texts are −1, −2, …, in order of appearance."""
        sources: list[int] = []
        targets: list[int] = []
        for name, element in JsonStream(self._path).members("nodes", "links"):
            if name == "nodes":
                self._add_node(element)
            elif name == "links":
                sources.append(self._end(element, "source"))
                targets.append(self._end(element, "target"))
                if len(sources) == _LINKS_PER_CHUNK:
                    yield np.array(sources), np.array(targets)
                    sources, targets = [], []
        yield np.array(sources, np.int64), np.array(targets, np.int64)

    def numbered(self, chunks: Any) -> Any:
        """The links with their ends as numbers of nodes."""
        # networkx 1 writes places and later versions ids: integers are ids if ids are integers
        by_id = all(type(name) is int for name in self.ids)
        places = {name: place for place, name in enumerate(self.ids)}
        is_range = by_id and self.ids == list(range(len(self.ids)))
        texts = np.array([places.get(text, -1) for text in self._texts], np.int64)

        def number(ends: NDArray[np.int64]) -> NDArray[np.int64]:
            ends = ends.astype(np.int64)
            if by_id and not is_range:
                ends = np.array([places.get(end, -1) for end in ends.tolist()], np.int64)
            elif len(texts) and (ends < 0).any():
                ends = np.where(ends < 0, texts[np.maximum(-ends, 1) - 1], ends)
            if len(ends) and ends.min() < 0:
                raise DataError(f"{self._path}: a link has a node that is not among the nodes")
            return ends

        def numbered() -> Iterator[Pairs]:
            for sources, targets in chunks():
                yield number(sources), number(targets)

        return numbered

    def _add_node(self, node: Any) -> None:
        if not isinstance(node, dict) or "id" not in node:
            raise DataError(f"{self._path}: node {len(self.ids):,} has no id")
        self.ids.append(node["id"])
        if "val" not in node or "test" not in node:
            self.splits.append(-1)
        else:
            self.splits.append(2 if node["test"] else 1 if node["val"] else 0)

    def _end(self, link: Any, end: str) -> int:
        found = link.get(end) if isinstance(link, dict) else None
        if isinstance(found, str):
            return -1 - self._texts.setdefault(found, len(self._texts))
        if type(found) is not int or not 0 <= found < 1 << 40:
            raise DataError(f"{self._path}: the {end} of a link is not a node: {found!r:.60}")
        return found
