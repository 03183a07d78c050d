"""Graphs given by lists of edges: the settings of `data.kind = "edges"`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from outsize.bounds import require_text
from outsize.data.encoding.recipe import feature_name
from outsize.data.encoding.sources import find_files
from outsize.data.encoding.splits import ColumnSplit, HashSplit, SplitConfig, TimeSplit
from outsize.data.graphs.arrays import ArrayFiles
from outsize.data.graphs.assemble import RawGraph
from outsize.data.graphs.edge_reader import read_edges
from outsize.data.graphs.graph_files import GraphFilesConfig
from outsize.data.graphs.node_files import NodeFile
from outsize.data.graphs.relation_file import RelationFile
from outsize.errors import ConfigError
from outsize.suggestions import few

NODE_SPLITS: dict[str, type[SplitConfig]] = {
    "hash": HashSplit,
    "column": ColumnSplit,
    "time": TimeSplit,
}
_NODE, _EDGE = "node", "edge"


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
        types = {
            end for file in self.relation_files().values() for end in (file.source, file.target)
        }
        for name in self.node_types:
            if name not in types:
                raise ConfigError(
                    f"no relation has nodes of type {name!r}; they have {few(sorted(types), name)}"
                )
        labelled = [name for name, file in self.node_files().items() if file.label]
        if len(labelled) > 1:
            raise ConfigError(
                f"only one node type can have a label, but {labelled[0]!r} and {labelled[1]!r} do"
            )

    def files(self) -> list[Path]:  # noqa: D102
        paths = [file.path for file in self.relation_files().values()]
        paths += [file.path for file in self.node_files().values()]
        return [path for each in paths for path in find_files(each)]

    def read(self, arrays: ArrayFiles) -> RawGraph:  # noqa: D102
        return read_edges(self, arrays)

    def relation_files(self) -> Mapping[str, RelationFile]:
        """The files of each relation."""
        if self.relations:
            return self.relations
        return {
            _EDGE: RelationFile(
                self.path, _NODE, _NODE, self.source, self.target, self.columns, self.delimiter,
                self.quoted, self.comment,
            )
        }  # fmt: skip

    def node_files(self) -> Mapping[str, NodeFile]:
        """The file of the nodes of each type, for those that have one."""
        return self.node_types if self.nodes is None else {_NODE: self.nodes}
