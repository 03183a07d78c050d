"""The columns of rows that ask for nodes or links of a graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outsize.contracts.neighborhood import GraphSchema
from outsize.json_files import Each, OneOf, check

_SCHEMA = {
    "id": str, "target": OneOf(None, str), "label": OneOf(None, str), "neighbors": Each(str),
    "attributes": Each(str), "separator": str, "label_separator": str, "columns": [str],
    "delimiter": str, "quoted": bool,
}  # fmt: skip


@dataclass(frozen=True)
class GraphColumns:
    """The columns that are read; those of neighbours and attributes may be missing.

    Attributes:
        id: Column of the node's id; for links, of the source's.
        target: For links, the column of the target's id.
        label: For nodes, the column of the class, for evaluation.
        neighbors: Relation → the column with the sources of a new node's edges.
        attributes: Attribute → the column with a new node's values.
        separator: Between several values in one text.
        label_separator: Between several classes of a node.
        columns: Names of the columns of text files without a header.
        delimiter: Between columns of text files; empty for the one that the name implies.
        quoted: Whether values of a text file may be quoted.
    """

    id: str
    target: str | None = None
    label: str | None = None
    neighbors: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)
    separator: str = "|"
    label_separator: str = "|"
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    quoted: bool = True

    @classmethod
    def of(cls, schema: GraphSchema, node_type: str, **settings: Any) -> GraphColumns:
        """The columns of nodes of a type: attributes and relations have those of their names.

        A relation with the name of another column has `relation-NAME`.

        Args:
            schema: The node types and relations that a model reads.
            node_type: The type.
            settings: The other members.
        """
        attributes = {name: name for name in schema.nodes[node_type]}
        taken = {settings.get(name) for name in ("id", "target", "label")} | set(attributes)
        neighbors = {
            name: f"relation-{name}" if name in taken else name
            for name, (_, target) in schema.relations.items()
            if target == node_type
        }
        return cls(neighbors=neighbors, attributes=attributes, **settings)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> GraphColumns:
        """The columns that `config.json` describes; raises a `SchemaError` for others."""
        check(facts, _SCHEMA)
        own = {name: facts[name] for name in _SCHEMA}
        return cls(**{**own, "columns": tuple(own["columns"])})

    def facts(self) -> dict[str, Any]:
        """The columns as `config.json` has them."""
        return {**asdict(self), "columns": list(self.columns)}

    def wanted(self, present: Collection[str], *others: str | None) -> tuple[str, ...]:
        """The columns to read of those that there are: the id, others, and all optional ones."""
        optional = (*self.neighbors.values(), *self.attributes.values())
        found = (self.id, *others, *(name for name in optional if name in present))
        return tuple(dict.fromkeys(name for name in found if name is not None))


def file_columns(path: Path, columns: GraphColumns) -> list[str]:
    """The columns of a file; none where it is unreadable, as reading it will tell."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from outsize.data.encoding.sources import delimiter_of, read_header
    from outsize.errors import DataError

    try:
        if path.suffix in (".parquet", ".pq"):
            names: list[str] = pq.ParquetFile(path).schema_arrow.names
            return names
        delimiter = columns.delimiter or delimiter_of(path)
        return list(columns.columns) or read_header(path, delimiter, columns.quoted)
    except (OSError, EOFError, ValueError, pa.ArrowException, DataError):
        return []
