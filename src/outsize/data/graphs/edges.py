"""Graphs read from lists of edges, in Parquet or text files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outsize.bounds import require_text
from outsize.data.click_data import Split
from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.column_values import to_text
from outsize.data.encoding.encoding_progress import say
from outsize.data.encoding.recipe import feature_name
from outsize.data.encoding.sources import Chunk, find_files, first_of, read_chunks
from outsize.data.encoding.splits import ColumnSplit, HashSplit, SplitConfig, TimeSplit
from outsize.data.graphs.arrays import ArrayFiles, PairFile
from outsize.data.graphs.assemble import RawGraph, RawRelation
from outsize.data.graphs.graph import NodeLabels, NodeType
from outsize.data.graphs.graph_files import GraphFilesConfig
from outsize.data.graphs.labels import in_order, multi_label, single_label, split_labelled
from outsize.data.graphs.node_files import NodeFile, NodeTable, bags_of, place_of, read_nodes
from outsize.data.graphs.raw_ids import IdScan, NodeIds, NotIntegersError, id_keys, id_names
from outsize.errors import ConfigError, DataError
from outsize.interrupts import check_stop
from outsize.suggestions import few

NODE_SPLITS: dict[str, type[SplitConfig]] = {
    "hash": HashSplit,
    "column": ColumnSplit,
    "time": TimeSplit,
}
_NODE, _EDGE = "node", "edge"
_MAX_RELATIONS = 1_000


@dataclass(frozen=True)
class RelationFile:
    """Files with one edge per row, between nodes of two types or of one.

    Attributes:
        path: Files or patterns; see `NodeFile`.
        source: The node type of sources.
        target: The node type of targets.
        source_column: Column of the source's id; by default the name of its type.
        target_column: Column of the target's id; by default the name of its type.
        columns: Names of the columns of text files without a header.
        delimiter: Between columns; by default a comma for `.csv` and a tab for other text.
        quoted: Whether values of a text file may be quoted.
        comment: Lines at the top of a text file that start with this are skipped, such as "#".
    """

    path: tuple[str, ...]
    source: str
    target: str
    source_column: str = ""
    target_column: str = ""
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    quoted: bool = True
    comment: str = ""

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("path is empty: name at least one file or pattern")
        require_text(self, "path", "source", "target", "columns")
        if self.ends[0] == self.ends[1]:
            raise ConfigError(
                f"source and target are both in the column {self.ends[0]!r}: name two columns as "
                "source_column and target_column"
            )

    @property
    def ends(self) -> tuple[str, str]:
        """The columns of sources and targets."""
        return self.source_column or self.source, self.target_column or self.target


@dataclass(frozen=True)
class EdgesConfig(GraphFilesConfig):
    """A graph given by lists of edges, and lists of nodes where they have labels or attributes.

    With nodes of one type, `path`, `source` and `target` name the edges and `[data.nodes]` the
    nodes. With several types, there is a section `[data.relations.NAME]` for each relation and, if
    the nodes of a type have a file, `[data.node_types.TYPE]`. Nodes without a file are those that
    edges mention.

    Attributes:
        path: Files or patterns of edges between nodes of one type, in the order they are read.
            `.parquet` and `.pq` are Parquet, everything else is text with a header, compressed if
            its name ends in `.gz`.
        source: Column of the source's id: integers of any size, or text.
        target: Column of the target's id.
        relation: Column whose values divide the edges into relations of that name; by default there
            is one, `edge`.
        nodes: The file of the nodes.
        node_types: Files of the nodes of each type, instead of `nodes`.
        relations: Files of the edges of each relation, instead of `path`.
        unknown: What to do with an edge whose node is not in the file of its type: an "error", or
            "skip" it and print their number.
        split: How labelled nodes are divided into training, validation and test sets.
        columns: Names of the columns of text files without a header.
        delimiter: Between columns; by default a comma for `.csv` and a tab for other text.
        quoted: Whether values of a text file may be quoted.
        comment: Lines at the top of a text file that start with this are skipped, such as "#".
        max_bad_rows: The largest share of malformed rows that is skipped; more is an error.
    """

    path: tuple[str, ...] = ()
    source: str = "source"
    target: str = "target"
    relation: str = ""
    nodes: NodeFile | None = None
    node_types: Mapping[str, NodeFile] = field(default_factory=dict)
    relations: Mapping[str, RelationFile] = field(default_factory=dict)
    unknown: Literal["error", "skip"] = "error"
    split: SplitConfig = field(default_factory=HashSplit, metadata={"kinds": NODE_SPLITS})
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    quoted: bool = True
    comment: str = ""
    max_bad_rows: float = 0.001

    def __post_init__(self) -> None:
        super().__post_init__()
        require_text(self, "path", "source", "target", "columns")
        if bool(self.path) == bool(self.relations):
            raise ConfigError(
                "name the edges either as path, or as a section relations.NAME for each relation"
            )
        if self.path and self.node_types:
            raise ConfigError("node_types is for several relations: name the nodes as nodes")
        if self.relations and self.nodes is not None:
            raise ConfigError("nodes is for a single relation: name the nodes as node_types.TYPE")
        if not 0 <= self.max_bad_rows <= 1:
            raise ConfigError(f"max_bad_rows is a share, 0 to 1, but got {self.max_bad_rows}")
        for name in (*self.node_types, *self.relations):
            if name != feature_name(name):
                raise ConfigError(
                    f"{name!r:.80} cannot name a relation or node type: use letters, digits, '_' "
                    "and, after the first, '-'"
                )
        types = {end for file in self._relations().values() for end in (file.source, file.target)}
        for name in self.node_types:
            if name not in types:
                raise ConfigError(
                    f"no relation has nodes of type {name!r}; they have {few(sorted(types), name)}"
                )
        labelled = [name for name, file in self._node_files().items() if file.label]
        if len(labelled) > 1:
            raise ConfigError(
                f"only one node type can have a label, but {labelled[0]!r} and {labelled[1]!r} do"
            )

    def files(self) -> list[Path]:  # noqa: D102
        paths = [file.path for file in self._relations().values()]
        paths += [file.path for file in self._node_files().values()]
        return [path for each in paths for path in find_files(each)]

    def read(self, arrays: ArrayFiles) -> RawGraph:  # noqa: D102
        as_text: set[str] = set()
        while True:
            reader = _Reader(self, arrays, as_text)
            try:
                return reader.read()
            except _TextIdsError as error:
                as_text.add(error.node_type)

    def _relations(self) -> Mapping[str, RelationFile]:
        if self.relations:
            return self.relations
        return {
            _EDGE: RelationFile(
                self.path, _NODE, _NODE, self.source, self.target, self.columns, self.delimiter,
                self.quoted, self.comment,
            )
        }  # fmt: skip

    def _node_files(self) -> Mapping[str, NodeFile]:
        return self.node_types if self.nodes is None else {_NODE: self.nodes}


class _TextIdsError(Exception):
    """The ids of a node type are not all integers."""

    def __init__(self, node_type: str) -> None:
        self.node_type = node_type


class _Reader:
    """Reads the files of a configuration, with the ids of some node types as text."""

    def __init__(self, config: EdgesConfig, arrays: ArrayFiles, as_text: set[str]) -> None:
        self._config = config
        self._arrays = arrays
        self._as_text = as_text
        self._files = config._node_files()
        self._relations = config._relations()

    def read(self) -> RawGraph:
        config = self._config
        tables = {name: self._read_nodes(name, file) for name, file in self._files.items()}
        ids = {name: table.ids for name, table in tables.items()}
        ids |= self._scan(ids)
        nodes = {
            name: NodeType(
                ids[name].num_nodes,
                tables[name].attributes if name in tables else {},
                ids[name].names,
            )
            for name in self._types()
        }
        relations: dict[str, RawRelation] = {}
        for number, (name, file) in enumerate(self._relations.items()):
            for found, pairs in self._encode(name, file, ids, number).items():
                relations[found] = RawRelation(
                    file.source, file.target, pairs.chunks, first_of(file.path)
                )
        for name, listed in self._files.items():
            if listed.label:
                labels, labelled = _labels(name, listed, tables[name], config.split)
                return RawGraph(nodes, relations, labels, labelled)
        return RawGraph(nodes, relations)

    def _types(self) -> list[str]:
        ends = ((file.source, file.target) for file in self._relations.values())
        return list(dict.fromkeys(name for pair in ends for name in pair))

    def _read_nodes(self, name: str, file: NodeFile) -> NodeTable:
        split = self._config.split if file.label else None
        as_text = name in self._as_text
        try:
            most = self._config.max_bad_rows
            return read_nodes(file, split, as_text=as_text, max_bad_rows=most)
        except NotIntegersError:
            raise _TextIdsError(name) from None

    def _scan(self, known: Mapping[str, NodeIds]) -> dict[str, NodeIds]:
        """The ids of node types that have no file."""
        scans = {
            name: IdScan(as_text=name in self._as_text)
            for name in self._types()
            if name not in known
        }
        for file in self._relations.values():
            if file.source not in scans and file.target not in scans:
                continue
            for chunk in self._chunks(file, file.ends, BadRows()):
                missing = np.zeros(chunk.num_rows, bool)
                for kind, column in zip((file.source, file.target), file.ends, strict=True):
                    missing |= self._keys(kind, chunk.columns[column])[1]
                chunk = _without(chunk, missing)
                for kind, column in zip((file.source, file.target), file.ends, strict=True):
                    if kind in scans:
                        scans[kind].add(chunk.columns[column])
        return {name: scan.finish() for name, scan in scans.items()}

    def _encode(
        self, name: str, file: RelationFile, ids: Mapping[str, NodeIds], number: int
    ) -> dict[str, PairFile]:
        """The edges of a file with their nodes as numbers, by relation."""
        by_value = self._config.relation if self._config.path else ""
        wanted = (*file.ends, by_value) if by_value else file.ends
        largest = max(ids[kind].num_nodes for kind in (file.source, file.target))
        found: dict[str, PairFile] = {}
        if not by_value:
            found[name] = self._arrays.pairs(f"{number}", largest)
        bad, num_unknown = BadRows(), 0
        for chunk in self._chunks(file, wanted, bad):
            bad.num_rows += chunk.num_rows
            sources, targets, good = self._pair(chunk, file, ids, bad)
            is_known = (sources >= 0) & (targets >= 0)
            if not is_known[good].all():
                self._require_known(file, chunk, sources, targets, good)
                num_unknown += int((good & ~is_known).sum())
                good &= is_known
            if not by_value:
                found[name].append(sources[good], targets[good])
                continue
            text, _ = to_text(chunk.columns[by_value])
            good &= self._refuse(bad, f"no value of {by_value!r}", text.codes < 0, chunk, file)
            for code, value in enumerate(text.values.to_pylist()):
                mine = good & (text.codes == code)
                if value not in found:
                    if len(found) == _MAX_RELATIONS:
                        raise DataError(
                            f"{first_of(file.path)}: column {by_value!r} has more than "
                            f"{_MAX_RELATIONS:,} values: it cannot name relations"
                        )
                    found[value] = self._arrays.pairs(f"{number}-{len(found)}", largest)
                found[value].append(sources[mine], targets[mine])
        bad.require_share(self._config.max_bad_rows)
        if bad.total:
            say(f"skipped malformed rows: {bad.describe()}")
        if num_unknown:
            say(f"{first_of(file.path)}: skipped {num_unknown:,} edges to nodes in no file")
        if bad.num_rows == bad.total:
            raise DataError(f"{first_of(file.path)}: there is no edge in it")
        names = list(found)
        relations = {feature_name(names[i]): found[names[i]] for i in in_order(names)}
        if len(relations) < len(names):
            raise DataError(
                f"{first_of(file.path)}: two values of {by_value!r} would name the same relation, "
                "as only letters, digits, '_' and '-' count: rename one"
            )
        return relations

    def _chunks(self, file: RelationFile, wanted: tuple[str, ...], bad: BadRows) -> Iterator[Chunk]:
        for chunk in read_chunks(find_files(file.path), wanted, file, bad, file.comment):
            check_stop()
            yield chunk

    def _pair(
        self, chunk: Chunk, file: RelationFile, ids: Mapping[str, NodeIds], bad: BadRows
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """The numbers of sources and targets, and a mask of the edges that have both."""
        good, pair = np.ones(chunk.num_rows, bool), []
        for kind, column in zip((file.source, file.target), file.ends, strict=True):
            keys, missing = self._keys(kind, chunk.columns[column])
            pair.append(ids[kind].numbers(keys))
            good &= self._refuse(bad, f"no value of {column!r}", missing & good, chunk, file)
        return pair[0], pair[1], good

    def _keys(self, kind: str, column: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        try:
            return id_keys(column, as_text=kind in self._as_text)
        except NotIntegersError:
            raise _TextIdsError(kind) from None

    def _refuse(
        self, bad: BadRows, kind: str, wrong: NDArray[np.bool_], chunk: Chunk, file: RelationFile
    ) -> NDArray[np.bool_]:
        """Count wrong rows; returns a mask of the others."""
        if wrong.any():
            place = self._place(chunk, int(np.flatnonzero(wrong)[0]), file)
            bad.add(kind, int(wrong.sum()), place)
        return ~wrong

    def _require_known(
        self,
        file: RelationFile,
        chunk: Chunk,
        sources: NDArray[np.int64],
        targets: NDArray[np.int64],
        good: NDArray[np.bool_],
    ) -> None:
        """Raise a `DataError` for an edge to an unknown node, unless such edges are skipped."""
        if self._config.unknown == "skip":
            return
        row = int(np.flatnonzero(good & ((sources < 0) | (targets < 0)))[0])
        kind, column = (file.source, file.ends[0]) if sources[row] < 0 else (
            file.target, file.ends[1]
        )  # fmt: skip
        as_text = kind in self._as_text
        raw = id_names(chunk.columns[column], np.array([row]), as_text=as_text)[0].as_py()
        raise DataError(
            f"{self._place(chunk, row, file)}: {column} {raw!r:.80} is not in "
            f"{first_of(self._files[kind].path)}: set unknown = 'skip' to leave out such edges"
        )

    def _place(self, chunk: Chunk, row: int, file: RelationFile) -> str:
        return place_of(chunk, row, find_files(file.path)[chunk.file])


def _without(chunk: Chunk, rows: NDArray[np.bool_]) -> Chunk:
    import pyarrow as pa

    if not rows.any():
        return chunk
    mask = pa.array(~rows)
    columns = {name: column.filter(mask) for name, column in chunk.columns.items()}
    return replace(
        chunk, columns=columns, num_rows=int((~rows).sum()), numbers=chunk.numbers[~rows]
    )


def _labels(
    name: str, file: NodeFile, table: NodeTable, split: SplitConfig
) -> tuple[NodeLabels, dict[Split, NDArray[np.int64]]]:
    origin = first_of(file.path)
    text = table.texts[file.label]
    if file.label_separator:
        bags = bags_of(text, file.label_separator)
        labels, is_labelled = multi_label(name, bags, file.min_class_size, origin)
    else:
        labels = single_label(name, text, file.min_class_size, origin)
        is_labelled = labels.classes >= 0
    texts = {column: table.texts[column] for column in split.text_columns}
    numbers = {column: table.numbers[column] for column in split.number_columns}
    return labels, split_labelled(split, is_labelled, texts, numbers, origin)
