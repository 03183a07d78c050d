"""Graphs in a single `.npz` file, as benchmarks of graph learning publish them.

Three forms are known, told apart by the names of the arrays:

- a sparse adjacency matrix `adj_*` with sparse attributes `attr_*` and `labels` (Cora, CiteSeer,
  Amazon Photo and others of the GNN benchmark, also with the names `adj_matrix.*`);
- `edges` with `labels` and the attributes `feat_indptr` and `feat_indices` (MUSAE);
- `edges` or `edge_index` with `node_labels` or `labels` and the masks `train_masks`, `val_masks`
  and `test_masks`, one row per split (heterophilous graphs), or `train_mask`, ….

Labels are a class per node, or a row of 0 and 1; if every row has a single 1, nodes have one class.
Dense features are left out: nodes have ids and bags of ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.bounds import require_at_least
from outsize.data.click_data import Split
from outsize.data.encoding.encoding_progress import say
from outsize.data.encoding.sources import find_files
from outsize.data.encoding.splits import HashSplit
from outsize.data.graphs.arrays import ArrayFiles
from outsize.data.graphs.assemble import RawGraph, RawRelation
from outsize.data.graphs.csr import EdgeRules, Pairs, group_edges
from outsize.data.graphs.graph import IdBags, NodeLabels, NodeType
from outsize.data.graphs.graph_files import GraphFilesConfig
from outsize.data.graphs.labels import drop_small_classes, labelled_splits, split_labelled
from outsize.data.graphs.npz_files import NpzFile, SparseMatrix
from outsize.errors import ConfigError, DataError

_ADJACENCY = ("adj_", "adj_matrix.", "adj_matrix_")
_ATTRIBUTES = ("attr_", "attr_matrix.", "attr_matrix_")
_EDGES = ("edges", "edge_index")
_LABELS = ("labels", "node_labels", "label")
_DENSE = ("node_features", "features", "feature", "x", "attr_matrix")
_MASKS: dict[Split, tuple[str, ...]] = {
    "train": ("train_masks", "train_mask"),
    "validation": ("val_masks", "val_mask", "valid_masks", "valid_mask"),
    "test": ("test_masks", "test_mask"),
}


@dataclass(frozen=True)
class NpzGraphConfig(GraphFilesConfig):
    """A graph in a single `.npz` file.

    Attributes:
        path: The file.
        attributes: Whether sparse attributes are read, as the attribute `words`.
        min_class_size: Nodes of classes with fewer nodes than this are unlabelled.
        split_number: Which of the file's splits is used, if it has several.
        validation: Share of the labelled nodes for validation, if the file has no split.
        test: Share of the labelled nodes for the test, if the file has no split.
        seed: Seed of that split.
    """

    path: str
    attributes: bool = True
    min_class_size: int = 1
    split_number: int = 0
    validation: float = 0.1
    test: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 0, "split_number")
        require_at_least(self, 1, "min_class_size")
        HashSplit(validation=self.validation, test=self.test)
        if not self.path:
            raise ConfigError("path is empty: name a .npz file")

    def files(self) -> list[Path]:  # noqa: D102
        return find_files((self.path,))

    def read(self, arrays: ArrayFiles) -> RawGraph:  # noqa: D102
        file = NpzFile(self.files()[0])
        num_nodes, chunks = _edges(file)
        attributes = {}
        if self.attributes:
            words = _attributes(file, num_nodes)
            attributes = {} if words is None else {"words": words}
        dense = [name for name in _DENSE if name in file and len(file.shape(name)) == 2]
        if dense:
            say(f"{file.path}: {dense[0]} is dense and is left out: nodes have ids, not features")
        nodes = {"node": NodeType(num_nodes, attributes, _node_names(file, num_nodes))}
        relations = {"edge": RawRelation("node", "node", chunks, str(file.path))}
        labels = _labels(file, num_nodes, self.min_class_size)
        if labels is None:
            return RawGraph(nodes, relations)
        return RawGraph(nodes, relations, labels, self._split(file, labels))

    def _split(self, file: NpzFile, labels: NodeLabels) -> dict[Split, NDArray[np.int64]]:
        is_labelled = labels.classes >= 0
        if labels.is_multi_label:
            is_labelled = np.ones(len(labels.classes), bool)
        found = {split: _first_of(file, names) for split, names in _MASKS.items()}
        if all(name is None for name in found.values()):
            split = HashSplit(validation=self.validation, test=self.test, seed=self.seed)
            return split_labelled(split, is_labelled, {}, {}, str(file.path))
        nodes: dict[Split, NDArray[np.int64]] = {}
        for split_name, name in found.items():
            if name is None:
                raise DataError(f"{file.path} has no mask of the {split_name} split")
            nodes[split_name] = np.flatnonzero(self._mask(file, name, len(is_labelled)))
        return labelled_splits(nodes, is_labelled, str(file.path))

    def _mask(self, file: NpzFile, name: str, num_nodes: int) -> NDArray[np.bool_]:
        masks = np.atleast_2d(file.array(name)).astype(bool)
        if masks.shape[0] == num_nodes != masks.shape[1]:
            masks = masks.T  # one column per split
        if masks.ndim != 2 or masks.shape[1] != num_nodes:
            raise DataError(f"{file.path}: {name} is not a mask of {num_nodes:,} nodes")
        if self.split_number >= len(masks):
            raise DataError(
                f"{file.path} has {len(masks)} splits, numbered from 0, but split_number is "
                f"{self.split_number}"
            )
        mask: NDArray[np.bool_] = masks[self.split_number]
        return mask


def _first_of(file: NpzFile, names: Iterable[str]) -> str | None:
    return next((name for name in names if name in file), None)


def _edges(file: NpzFile) -> tuple[int, Callable[[], Iterable[Pairs]]]:
    """The number of nodes, and their edges."""
    for prefix in _ADJACENCY:
        if f"{prefix}indptr" in file:
            matrix = SparseMatrix(file, prefix)
            if matrix.shape[0] != matrix.shape[1]:
                raise DataError(f"{file.path}: the adjacency matrix is not square: {matrix.shape}")
            return matrix.shape[0], matrix.pairs
    name, labels = _first_of(file, _EDGES), _label_name(file)
    if name is None:
        raise DataError(
            f"{file.path} has neither an adjacency matrix (adj_indptr, …) nor edges; this form of "
            "graph is not known"
        )
    if labels is None:
        raise DataError(f"{file.path} has no labels, so the number of its nodes is unknown")
    return file.shape(labels)[0], lambda: file.pairs(name)


def _attributes(file: NpzFile, num_nodes: int) -> IdBags | None:
    for prefix in _ATTRIBUTES:
        if f"{prefix}indptr" in file:
            return bags_of_matrix(SparseMatrix(file, prefix), num_nodes, str(file.path))
    if "feat_indptr" not in file:
        return None
    starts, values = file.integers("feat_indptr"), file.array("feat_indices")
    if len(starts) != num_nodes + 1 or starts[-1] != len(values) or (np.diff(starts) < 0).any():
        raise DataError(f"{file.path}: feat_indptr does not fit {num_nodes:,} nodes")
    if len(values) and values.min() < 0:
        raise DataError(f"{file.path}: feat_indices holds {values.min()}, but ids are from 0 on")
    return IdBags(starts, values.astype(np.int32), int(values.max(initial=-1)) + 1)


def bags_of_matrix(matrix: SparseMatrix, num_nodes: int, origin: str) -> IdBags:
    """The columns of the values other than 0 of each row, as bags."""
    if matrix.shape[0] != num_nodes:
        raise DataError(
            f"{origin}: attributes are of {matrix.shape[0]:,} nodes, but there are {num_nodes:,}"
        )

    def turned() -> Iterable[Pairs]:
        return ((columns, rows) for rows, columns in matrix.pairs())

    rules = EdgeRules(undirected=False)
    bags = group_edges(turned, matrix.shape[1], num_nodes, rules, same_type=False)
    return IdBags(bags.starts, bags.sources, matrix.shape[1])


def _label_name(file: NpzFile) -> str | None:
    """The array of labels, which must not hold objects; `None` if there is none."""
    name = next((name for name in _LABELS if name in file.names()), None)
    if name is not None:
        file.shape(name)  # refuses objects
    return name


def _labels(file: NpzFile, num_nodes: int, min_class_size: int) -> NodeLabels | None:
    name = _label_name(file)
    if name is None:
        return None
    shape = file.shape(name)
    if shape[:1] != (num_nodes,):
        raise DataError(
            f"{file.path}: {name} is of {shape[0]:,} nodes, but there are {num_nodes:,}"
        )
    if len(shape) == 2 and shape[1] > 1:
        classes: NDArray[Any] = (file.array(name) > 0).astype(np.uint8)
        names = _class_names(file, shape[1])
        if not (classes.sum(axis=1) == 1).all():
            return NodeLabels("node", classes, names)
        labels = NodeLabels("node", classes.argmax(axis=1), names)  # one of several, in full
        return drop_small_classes(labels, min_class_size, str(file.path))
    raw = file.array(name).reshape(-1)
    if raw.dtype.kind == "f":
        raw = np.where(np.isnan(raw), -1, raw)
    if raw.dtype.kind not in "iufb" or not np.array_equal(raw, np.floor(raw.astype(np.float64))):
        raise DataError(f"{file.path}: {name} must be numbers of classes, but is {raw.dtype.name}")
    numbers = np.maximum(raw.astype(np.int64), -1)
    num_classes = int(numbers.max(initial=-1)) + 1
    if num_classes > max(1 << 16, num_nodes):
        raise DataError(
            f"{file.path}: {name} has the class {num_classes - 1:,}, which is too large"
        )
    labels = NodeLabels("node", numbers, _class_names(file, num_classes))
    return drop_small_classes(labels, min_class_size, str(file.path))


def _class_names(file: NpzFile, num_classes: int) -> tuple[str, ...]:
    for name in ("class_names", "label_names"):
        if name in file and file.shape(name) == (num_classes,):
            return tuple(map(str, file.array(name).tolist()))
    return tuple(map(str, range(num_classes)))


def _node_names(file: NpzFile, num_nodes: int) -> Any:
    import pyarrow as pa

    if "node_names" not in file or file.shape("node_names") != (num_nodes,):
        return None
    return pa.array(map(str, file.array("node_names").tolist()), pa.large_string())
