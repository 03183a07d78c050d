"""Node property prediction of the Open Graph Benchmark, from a data set's folder as downloaded.

With nodes of one type, such as ogbn-arxiv and ogbn-products:

    raw/edge.csv.gz              source,target
    raw/num-node-list.csv.gz     number of nodes
    raw/node-label.csv.gz        class, or one column of 0 and 1 per class
    split/NAME/{train,valid,test}.csv.gz

With several types, such as ogbn-mag:

    raw/num-node-dict.csv.gz     names of the types, then their numbers of nodes
    raw/relations/SOURCE___NAME___TARGET/edge.csv.gz
    raw/node-label/TYPE/node-label.csv.gz
    split/NAME/TYPE/{train,valid,test}.csv.gz

Dense features are left out: nodes have ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.click_data import Split
from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.column_values import to_numbers
from outsize.data.encoding.sources import Chunk, read_chunks, read_header
from outsize.data.graphs.arrays import ArrayFiles
from outsize.data.graphs.assemble import RawGraph, RawRelation
from outsize.data.graphs.csr import Pairs
from outsize.data.graphs.graph import NodeLabels, NodeType
from outsize.data.graphs.graph_files import GraphFilesConfig
from outsize.data.graphs.labels import drop_small_classes, labelled_splits
from outsize.data.graphs.raw_ids import NotIntegersError, id_keys
from outsize.errors import ConfigError, DataError
from outsize.interrupts import check_stop

_SPLIT_FILES: dict[Split, str] = {"train": "train", "validation": "valid", "test": "test"}
_MAX_CLASSES = 1 << 20


@dataclass(frozen=True)
class OgbConfig(GraphFilesConfig):
    """A data set for node property prediction of the Open Graph Benchmark.

    Attributes:
        path: Folder of the data set, with `raw` and `split` in it, such as `dataset/ogbn_arxiv`.
        split: Folder in `split` with the split to use; it can be left out if there is only one.
        min_class_size: Nodes of classes with fewer nodes than this are unlabelled.
    """

    path: str
    split: str = ""
    min_class_size: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise ConfigError("path is empty: name the folder of a data set")

    def files(self) -> list[Path]:  # noqa: D102
        layout = self._layout()
        return [
            layout.counts, *(path for _, _, path in layout.relations.values()), layout.labels,
            *layout.splits.values(),
        ]  # fmt: skip

    def read(self, arrays: ArrayFiles) -> RawGraph:  # noqa: D102
        layout = self._layout()
        counts = layout.num_nodes()
        relations = {}
        for number, (name, (source, target, path)) in enumerate(layout.relations.items()):
            for kind in (source, target):
                if kind not in counts:
                    raise DataError(f"{layout.counts} has no number of nodes of type {kind!r}")
            pairs = arrays.pairs(f"{number}", max(counts[source], counts[target]))
            for sources, targets in _edges(path):
                pairs.append(sources, targets)
            relations[name] = RawRelation(source, target, pairs.chunks, str(path))
        nodes = {name: NodeType(count) for name, count in counts.items()}
        kind = layout.labelled_type
        labels = _labels(layout.labels, kind, counts[kind], self.min_class_size)
        return RawGraph(nodes, relations, labels, _splits(layout, labels))

    def _layout(self) -> _Layout:
        folder = Path(self.path)
        raw = folder / "raw"
        if not raw.is_dir():
            raise DataError(f"{folder} has no folder raw: it is not a data set of OGB")
        if (raw / "relations").is_dir():
            return _several_types(folder, self.split)
        if not (raw / "edge.csv.gz").is_file() and (raw / "data.npz").is_file():
            raise DataError(
                f"{raw}: data.npz is the binary form of a large data set, which is not supported: "
                "write the edges as Parquet and read them with kind = 'edges'"
            )
        return _one_type(folder, self.split)


@dataclass(frozen=True)
class _Layout:
    """Where the files of a data set are.

    Attributes:
        counts: The file with the numbers of nodes.
        relations: Name → source type, target type and file of edges.
        labelled_type: The type of labelled nodes.
        labels: The file of labels.
        splits: Split → the file with its nodes.
    """

    counts: Path
    relations: dict[str, tuple[str, str, Path]]
    labelled_type: str
    labels: Path
    splits: dict[Split, Path]

    def num_nodes(self) -> dict[str, int]:
        """Node type → number of nodes."""
        if self.counts.name == "num-node-list.csv.gz":
            (count,) = _table(self.counts, 1, 1)[:, 0]
            return {"node": int(count)}
        names = read_header(self.counts, ",", False)
        (counts,) = _table(self.counts, len(names), 1, has_header=True)
        return dict(zip(names, map(int, counts), strict=True))


def _one_type(folder: Path, split: str) -> _Layout:
    raw, splits = folder / "raw", _split_folder(folder, split)
    return _Layout(
        _require(raw / "num-node-list.csv.gz"),
        {"edge": ("node", "node", _require(raw / "edge.csv.gz"))},
        "node",
        _require(raw / "node-label.csv.gz"),
        {name: _require(splits / f"{file}.csv.gz") for name, file in _SPLIT_FILES.items()},
    )


def _several_types(folder: Path, split: str) -> _Layout:
    raw = folder / "raw"
    found: list[tuple[str, str, str, Path]] = []
    for path in sorted((raw / "relations").iterdir()):
        parts = path.name.split("___")
        if path.is_dir():
            if len(parts) != 3:
                raise DataError(f"{path} must be named SOURCE___RELATION___TARGET")
            found.append((parts[0], parts[1], parts[2], _require(path / "edge.csv.gz")))
    names = [name for _, name, _, _ in found]
    relations = {
        name if names.count(name) == 1 else f"{source}_{name}_{target}": (source, target, path)
        for source, name, target, path in found
    }
    if not relations:
        raise DataError(f"{raw / 'relations'} is empty: there is no edge")
    label_folder = raw / "node-label"
    kinds = sorted(p.name for p in label_folder.iterdir()) if label_folder.is_dir() else []
    labelled = [kind for kind in kinds if (label_folder / kind / "node-label.csv.gz").is_file()]
    if len(labelled) != 1:
        raise DataError(f"{label_folder} must hold the labels of one node type, but of {labelled}")
    splits = _split_folder(folder, split) / labelled[0]
    return _Layout(
        _require(raw / "num-node-dict.csv.gz"),
        relations,
        labelled[0],
        label_folder / labelled[0] / "node-label.csv.gz",
        {name: _require(splits / f"{file}.csv.gz") for name, file in _SPLIT_FILES.items()},
    )


def _split_folder(folder: Path, name: str) -> Path:
    parent = folder / "split"
    names = (
        sorted(path.name for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []
    )
    if not name and len(names) == 1:
        return parent / names[0]
    if name not in names:
        raise DataError(
            f"{parent} has no split {name!r}: set split to one of {', '.join(names) or '(none)'}"
        )
    return parent / name


def _require(path: Path) -> Path:
    if not path.is_file():
        raise DataError(f"{path}: no such file; a data set of OGB has it")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: there is nothing to read in it")
    return path


@dataclass(frozen=True)
class _Form:
    """Text without quotes; the columns are named by their numbers."""

    columns: tuple[str, ...]
    delimiter: str = ","
    quoted: bool = False


def _chunks(path: Path, num_columns: int) -> Iterator[Chunk]:
    names = tuple(map(str, range(num_columns)))
    bad = BadRows()
    for chunk in read_chunks([path], names, _Form(names), bad):
        check_stop()
        yield chunk
    if bad.total:
        raise DataError(f"{path}: {bad.total:,} lines have {next(iter(bad.counts))}")


def _edges(path: Path) -> Iterator[Pairs]:
    for chunk in _chunks(path, 2):
        ends: list[NDArray[np.int64]] = []
        for name in ("0", "1"):
            try:
                keys, missing = id_keys(chunk.columns[name], as_text=False)
            except NotIntegersError:
                raise DataError(f"{path}: an edge has a node that is not a number") from None
            if missing.any():
                raise DataError(f"{path}: an edge has no {'target' if ends else 'source'}")
            ends.append(keys)
        yield ends[0], ends[1]


def _table(
    path: Path, num_columns: int, num_rows: int | None, *, has_header: bool = False
) -> NDArray[np.float64]:
    """A file of numbers, NaN where they are missing."""
    parts = []
    for number, chunk in enumerate(_chunks(path, num_columns)):
        columns = []
        for column in chunk.columns.values():
            skipped = column[1:] if has_header and number == 0 else column
            numbers, wrong = to_numbers(skipped)
            if wrong is not None and wrong.any():
                raise DataError(f"{path}: a value is not a number")
            columns.append(numbers)
        parts.append(np.stack(columns, axis=1))
    table = np.concatenate(parts) if parts else np.zeros((0, num_columns))
    if num_rows is not None and len(table) != num_rows:
        raise DataError(f"{path} has {len(table):,} rows where {num_rows:,} belong")
    return table


def _labels(path: Path, kind: str, num_nodes: int, min_class_size: int) -> NodeLabels:
    num_columns = len(read_header(path, ",", False))
    table = _table(path, num_columns, num_nodes)
    whole = np.where(np.isnan(table), -1, table)
    if not np.array_equal(whole, np.floor(whole)) or whole.max(initial=0) > _MAX_CLASSES:
        raise DataError(f"{path}: a label is not the number of a class")
    if num_columns > 1:
        classes = (whole > 0).astype(np.uint8)
        return NodeLabels(kind, classes, tuple(map(str, range(num_columns))))
    numbers = np.maximum(whole[:, 0].astype(np.int64), -1)
    names = tuple(map(str, range(int(numbers.max(initial=-1)) + 1)))
    return drop_small_classes(NodeLabels(kind, numbers, names), min_class_size, str(path))


def _splits(layout: _Layout, labels: NodeLabels) -> dict[Split, NDArray[np.int64]]:
    num_nodes = len(labels.classes)
    is_labelled = np.ones(num_nodes, bool) if labels.is_multi_label else labels.classes >= 0
    splits: dict[Split, NDArray[np.int64]] = {}
    for split, path in layout.splits.items():
        numbers = _table(path, 1, None)[:, 0]
        if np.isnan(numbers).any() or not np.array_equal(numbers, np.floor(numbers)):
            raise DataError(f"{path}: a value is not the number of a node")
        nodes = numbers.astype(np.int64)
        if len(nodes) and (nodes.min() < 0 or nodes.max() >= num_nodes):
            raise DataError(
                f"{path}: it has the node {nodes.max():,}, but there are {num_nodes:,} nodes"
            )
        splits[split] = np.unique(nodes)
    return labelled_splits(splits, is_labelled, str(layout.labels))
