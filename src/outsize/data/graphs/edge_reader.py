"""Reading lists of edges in Parquet or text files, with the files of their nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.click_data import Split
from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.column_values import to_text
from outsize.data.encoding.encoding_progress import say
from outsize.data.encoding.recipe import feature_name
from outsize.data.encoding.sources import Chunk, find_files, first_of, read_chunks
from outsize.data.encoding.splits import SplitConfig
from outsize.data.graphs.arrays import ArrayFiles, PairFile
from outsize.data.graphs.assemble import RawGraph, RawRelation
from outsize.data.graphs.graph import NodeLabels, NodeType
from outsize.data.graphs.labels import in_order, multi_label, single_label, split_labelled
from outsize.data.graphs.node_files import NodeFile, NodeTable, bags_of, read_nodes
from outsize.data.graphs.raw_ids import IdScan, NodeIds, NotIntegersError, id_keys, id_names
from outsize.data.graphs.relation_file import RelationFile
from outsize.errors import DataError
from outsize.interrupts import check_stop

if TYPE_CHECKING:
    from outsize.data.graphs.edges import EdgesConfig

_MAX_RELATIONS = 1_000


def read_edges(config: EdgesConfig, arrays: ArrayFiles) -> RawGraph:
    """Read a graph; ids of a node type are text if one of them is not an integer."""
    as_text: set[str] = set()
    while True:
        reader = _Reader(config, arrays, as_text)
        try:
            return reader.read()
        except _TextIdsError as error:
            as_text.add(error.node_type)


class _TextIdsError(Exception):
    """The ids of a node type are not all integers."""

    def __init__(self, node_type: str) -> None:
        self.node_type = node_type


class _Reader:
    """Reads files, with the ids of some node types as text."""

    def __init__(self, config: EdgesConfig, arrays: ArrayFiles, as_text: set[str]) -> None:
        self._config = config
        self._arrays = arrays
        self._as_text = as_text
        self._files, self._relations = config.node_files(), config.relation_files()

    def read(self) -> RawGraph:
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
                labels, labelled = _labels(name, listed, tables[name], self._config.split)
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
            chunk.refuse(bad, f"no value of {by_value!r}", text.codes < 0, _path(file, chunk))
            good &= text.codes >= 0
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
            chunk.refuse(bad, f"no value of {column!r}", missing & good, _path(file, chunk))
            good &= ~missing
        return pair[0], pair[1], good

    def _keys(self, kind: str, column: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        try:
            return id_keys(column, as_text=kind in self._as_text)
        except NotIntegersError:
            raise _TextIdsError(kind) from None

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
            f"{chunk.place_of(row, _path(file, chunk))}: {column} {raw!r:.80} is not in "
            f"{first_of(self._files[kind].path)}: set unknown = 'skip' to leave out such edges"
        )


def _path(file: RelationFile, chunk: Chunk) -> Path:
    return find_files(file.path)[chunk.file]


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
