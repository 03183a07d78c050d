"""A graph as a description and arrays by name, so that it can be a folder on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.click_data import Split
from outsize.data.graphs.arrays import ArrayFiles, digest_of, fingerprint, map_array
from outsize.data.graphs.graph import Graph, GraphData, IdBags, NodeLabels, NodeType, Relation
from outsize.json_files import Absent, Each, OneOf, SchemaError, Whole, Word

_ARRAY = {
    "file": str,
    "dtype": Word("int8", "int16", "int32", "int64", "uint8"),
    "shape": [Whole()],
}
_NAMES = OneOf(None, str)
_BAGS = {"starts": _ARRAY, "values": _ARRAY, "num_ids": Whole(), "names": _NAMES}
_SPLITS = {split: Absent(_ARRAY) for split in ("train", "validation", "test")}
SCHEMA = {
    "nodes": Each({"num_nodes": Whole(), "names": _NAMES, "attributes": Each(_BAGS)}),
    "relations": Each({"source": str, "target": str, "starts": _ARRAY, "sources": _ARRAY}),
    "labels": OneOf(None, {"node_type": str, "classes": _ARRAY, "class_names": [str]}),
    "labelled": _SPLITS,
    "links": _SPLITS,
    "link_relation": OneOf(None, str),
}


def sources_file(relation: int) -> str:
    """The file with the sources of the relation with this number."""
    return f"relation-{relation}-sources.bin"


def links_file(split: Split) -> str:
    """The file with the links of a split."""
    return f"links-{split}.bin"


@dataclass
class _Parts:
    """The files of a graph."""

    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)

    def array(self, file: str, array: NDArray[Any]) -> dict[str, Any]:
        self.arrays[file] = array
        return {"file": file, "dtype": array.dtype.name, "shape": list(array.shape)}

    def column(self, file: str, names: Any) -> str | None:
        if names is not None:
            self.names[file] = names
        return None if names is None else file


def describe(data: GraphData) -> tuple[dict[str, Any], _Parts]:
    """The description of a graph, and the arrays and names that it mentions."""
    parts = _Parts()
    nodes = {}
    for number, (name, kind) in enumerate(data.graph.nodes.items()):
        attributes = {}
        for i, (attribute, bags) in enumerate(kind.attributes.items()):
            file = f"attribute-{number}-{i}"
            attributes[attribute] = {
                "starts": parts.array(f"{file}-starts.bin", bags.starts),
                "values": parts.array(f"{file}-values.bin", bags.values),
                "num_ids": bags.num_ids,
                "names": parts.column(f"{file}-names.arrow", bags.names),
            }
        names = parts.column(f"names-{number}.arrow", kind.names)
        nodes[name] = {"num_nodes": kind.num_nodes, "names": names, "attributes": attributes}
    relations = {
        name: {
            "source": relation.source,
            "target": relation.target,
            "starts": parts.array(f"relation-{number}-starts.bin", relation.starts),
            "sources": parts.array(sources_file(number), relation.sources),
        }
        for number, (name, relation) in enumerate(data.graph.relations.items())
    }
    labels = None
    if data.labels is not None:
        labels = {
            "node_type": data.labels.node_type,
            "classes": parts.array("classes.bin", data.labels.classes),
            "class_names": list(data.labels.class_names),
        }
    description = {
        "nodes": nodes,
        "relations": relations,
        "labels": labels,
        "labelled": {
            split: parts.array(f"labelled-{split}.bin", found)
            for split, found in data.labelled.items()
        },
        "links": {
            split: parts.array(links_file(split), found) for split, found in data.links.items()
        },
        "link_relation": data.link_relation,
    }
    return description, parts


def fingerprint_in_memory(data: GraphData) -> str:
    """The fingerprint that a graph has once it is written."""
    description, parts = describe(data)
    digests = {name: digest_of(array) for name, array in parts.arrays.items()}
    return fingerprint(_text(description), digests)


def fingerprint_of_files(
    description: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]]
) -> str:
    """The fingerprint of a graph, given the facts of its files."""
    digests = {name: facts["sha256"] for name, facts in files.items() if name.endswith(".bin")}
    return fingerprint(_text(description), digests)


def write_arrays(data: GraphData, files: ArrayFiles, folder: Path) -> dict[str, Any]:
    """Write a graph to a folder, remove all other files in it, and return the description."""
    description, parts = describe(data)
    for name, array in parts.arrays.items():
        files.save(name, array)
    for name, values in parts.names.items():
        _write_names(folder / name, values)
    for path in folder.iterdir():
        if path.name not in parts.arrays and path.name not in parts.names:
            path.unlink()
    return description


def load_graph(folder: Path, description: Mapping[str, Any], fingerprint: str) -> GraphData:
    """A graph that was written to a folder, memory-mapped."""
    return _restore(
        description,
        fingerprint,
        lambda stored: map_array(folder / stored["file"], stored["dtype"], stored["shape"]),
        lambda file: None if file is None else _read_names(folder / file),
    )


def require_consistent(manifest: Mapping[str, Any]) -> None:
    """Raise a `SchemaError` if a description does not fit the files."""
    files = manifest["files"]

    def require_file(stored: Mapping[str, Any]) -> NDArray[Any]:
        size = np.dtype(stored["dtype"]).itemsize * int(np.prod(stored["shape"], dtype=object))
        if stored["file"] not in files:
            raise SchemaError(f"it does not mention {stored['file']!r:.60}")
        if files[stored["file"]]["bytes"] != size:
            raise SchemaError(f"the shape of {stored['file']!r:.60} does not fit its bytes")
        return np.empty(0, stored["dtype"])

    data = _restore(manifest, "", require_file, lambda file: None)
    for relation in data.graph.relations.values():
        if not {relation.source, relation.target} <= data.graph.nodes.keys():
            raise SchemaError("a relation is between node types that there are not")


def _restore(
    description: Mapping[str, Any],
    fingerprint: str,
    array: Callable[[Mapping[str, Any]], NDArray[Any]],
    names: Callable[[str | None], Any],
) -> GraphData:
    nodes = {
        name: NodeType(
            kind["num_nodes"],
            {
                attribute: IdBags(
                    array(bags["starts"]), array(bags["values"]), bags["num_ids"],
                    names(bags["names"]),
                )
                for attribute, bags in kind["attributes"].items()
            },
            names(kind["names"]),
        )
        for name, kind in description["nodes"].items()
    }  # fmt: skip
    relations = {
        name: Relation(
            relation["source"], relation["target"], array(relation["starts"]),
            array(relation["sources"]),
        )
        for name, relation in description["relations"].items()
    }  # fmt: skip
    labels = description["labels"]
    return GraphData(
        Graph(nodes, relations),
        fingerprint,
        labels
        and NodeLabels(labels["node_type"], array(labels["classes"]), tuple(labels["class_names"])),
        {split: array(found) for split, found in description["labelled"].items()},
        {split: array(found) for split, found in description["links"].items()},
        description["link_relation"],
    )


def _text(description: Mapping[str, Any]) -> str:
    return json.dumps(description, sort_keys=True)


def _write_names(path: Path, names: Any) -> None:
    import pyarrow as pa

    table = pa.table({"name": names})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _read_names(path: Path) -> Any:
    import pyarrow as pa

    names = pa.ipc.open_file(pa.memory_map(str(path))).read_all()["name"]
    return names.combine_chunks() if names.num_chunks != 1 else names.chunk(0)
