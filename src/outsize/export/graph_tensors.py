"""A graph as plain values and tensors, so that an exported model has it in a file.

The file is memory-mapped when it is opened: a graph may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize.contracts.neighborhood import GraphSchema
from outsize.json_files import SchemaError, Whole, Word

if TYPE_CHECKING:
    from outsize.data.graphs.graph import Graph

_NAMES = Word("numbers", "integers", "texts")
GRAPH_SCHEMA = {
    "nodes": [
        {
            "name": str,
            "num_nodes": Whole(),
            "ids": _NAMES,
            "attributes": [{"name": str, "num_ids": Whole(), "ids": _NAMES}],
        }
    ],
    "relations": [{"name": str, "source": str, "target": str}],
}


def read_part(graph: Graph, types_by_layer: list[list[str]]) -> Graph:
    """The node types and relations of a graph that a model reads.

    Args:
        graph: The graph.
        types_by_layer: As `GraphModel` has them.
    """
    from outsize.data.graphs.graph import Graph

    computed = {kind for kinds in types_by_layer[1:] for kind in kinds}
    return Graph(
        {kind: nodes for kind, nodes in graph.nodes.items() if kind in types_by_layer[0]},
        {name: edges for name, edges in graph.relations.items() if edges.target in computed},
    )


def graph_state(graph: Graph) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `config.json` says of a graph, and its tensors by name."""
    tensors: dict[str, Tensor] = {}

    def put(name: str, array: Any) -> None:
        tensors[name] = torch.from_numpy(np.require(array, requirements=["C", "W"]))

    nodes = []
    for number, (kind, own) in enumerate(graph.nodes.items()):
        attributes = []
        for i, (name, bags) in enumerate(own.attributes.items()):
            prefix = f"attribute.{number}.{i}"
            put(f"{prefix}.starts", bags.starts)
            put(f"{prefix}.values", bags.values)
            ids = _put_names(prefix, bags.names, put)
            attributes.append({"name": name, "num_ids": bags.num_ids, "ids": ids})
        ids = _put_names(f"nodes.{number}", own.names, put)
        nodes.append(
            {"name": kind, "num_nodes": own.num_nodes, "ids": ids, "attributes": attributes}
        )
    relations = []
    for number, (name, edges) in enumerate(graph.relations.items()):
        put(f"relation.{number}.starts", edges.starts)
        put(f"relation.{number}.sources", edges.sources)
        relations.append({"name": name, "source": edges.source, "target": edges.target})
    return {"nodes": nodes, "relations": relations}, tensors


def graph_from_state(facts: Mapping[str, Any], tensor: Callable[[str], Tensor]) -> Graph:
    """The graph of an export.

    Args:
        facts: What `config.json` says of it.
        tensor: Returns a tensor by its name.

    Raises:
        SchemaError: The tensors are not those that are described.
    """
    from outsize.data.graphs.graph import Graph, IdBags, NodeType, Relation

    def get(name: str) -> NDArray[Any]:
        return np.require(tensor(name).numpy(), requirements="A")

    nodes: dict[str, NodeType] = {}
    for number, own in enumerate(facts["nodes"]):
        attributes = {}
        for i, bags in enumerate(own["attributes"]):
            prefix = f"attribute.{number}.{i}"
            starts, values = get(f"{prefix}.starts"), get(f"{prefix}.values")
            _require_groups(prefix, starts, values, own["num_nodes"])
            names = _names(prefix, bags["ids"], bags["num_ids"], get)
            attributes[bags["name"]] = IdBags(starts, values, bags["num_ids"], names)
        names = _names(f"nodes.{number}", own["ids"], own["num_nodes"], get)
        nodes[own["name"]] = NodeType(own["num_nodes"], attributes, names)
    relations: dict[str, Relation] = {}
    for number, edges in enumerate(facts["relations"]):
        for kind in (edges["source"], edges["target"]):
            if kind not in nodes:
                raise SchemaError(f"relation {edges['name']!r:.60} has no node type {kind!r:.60}")
        prefix = f"relation.{number}"
        starts, sources = get(f"{prefix}.starts"), get(f"{prefix}.sources")
        _require_groups(prefix, starts, sources, nodes[edges["target"]].num_nodes)
        relations[edges["name"]] = Relation(edges["source"], edges["target"], starts, sources)
    return Graph(nodes, relations)


def schema_of(facts: Mapping[str, Any]) -> GraphSchema:
    """The node types and relations that `config.json` describes."""
    return GraphSchema(
        {own["name"]: tuple(a["name"] for a in own["attributes"]) for own in facts["nodes"]},
        {edges["name"]: (edges["source"], edges["target"]) for edges in facts["relations"]},
    )


def _require_groups(name: str, starts: NDArray[Any], values: NDArray[Any], num_groups: int) -> None:
    if starts.shape != (num_groups + 1,) or values.shape != (int(starts[-1]),):
        raise SchemaError(f"the tensors of {name!r} do not fit the number of nodes")


def _put_names(prefix: str, names: Any, put: Callable[[str, Any], None]) -> str:
    """Put raw ids, a pyarrow array, and return their kind."""
    import pyarrow as pa

    if names is None:
        return "numbers"
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    if pa.types.is_integer(names.type):
        put(f"{prefix}.names", names.cast(pa.int64()).to_numpy(zero_copy_only=False))
        return "integers"
    names = pa.concat_arrays([names.cast(pa.large_string())])
    _, ends, text = names.buffers()
    offsets = np.frombuffer(ends, np.int64)[names.offset : names.offset + len(names) + 1]
    data = np.frombuffer(text or b"", np.uint8)[offsets[0] : offsets[-1]]
    put(f"{prefix}.name_starts", offsets - offsets[0])
    put(f"{prefix}.names", data)
    return "texts"


def _names(prefix: str, kind: str, count: int, get: Callable[[str], NDArray[Any]]) -> Any:
    """Raw ids as a pyarrow array over the tensors; `None` if they are the numbers."""
    import pyarrow as pa

    if kind == "numbers":
        return None
    names = get(f"{prefix}.names")
    if kind == "integers":
        if len(names) != count:
            raise SchemaError(f"there are {len(names):,} names of {count:,} {prefix!r}")
        return pa.array(names)
    starts = get(f"{prefix}.name_starts")
    _require_groups(f"{prefix}.names", starts, names, count)
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(names)]
    return pa.LargeStringArray.from_buffers(count, buffers[1], buffers[2])
