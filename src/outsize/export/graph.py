"""Exported graph models: weights and tables, and the graph that they read.

`graph.safetensors` holds the edges, attributes and raw ids that the model reads, memory-mapped when
it is loaded. Of a model of links, `vectors.safetensors` holds the vectors of all nodes that links
lead from and to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.export.asked_nodes import NodeReader
from outsize.export.format import CONFIG, registered, unreadable
from outsize.export.graph_columns import GraphColumns
from outsize.export.graph_encoder import GraphEncoder
from outsize.export.graph_predictors import LinkPredictor, NodePredictor
from outsize.export.graph_tensors import (
    GRAPH_SCHEMA,
    graph_from_state,
    graph_state,
    read_part,
    schema_of,
)
from outsize.export.tables import CHUNK_ROWS
from outsize.export.weights import all_tensors
from outsize.export.write import write_model
from outsize.json_files import Absent, OneOf, SchemaError, check
from outsize.models import GRAPH_MODELS, GraphModel, GraphModelConfig

if TYPE_CHECKING:
    from outsize.data.graphs.graph import Graph

GRAPH, VECTORS = "graph.safetensors", "vectors.safetensors"
_OWN_ROW, _COLD = "own_row", "cold"
_SCHEMA = {
    **GRAPH_SCHEMA,
    "node_type": str,
    "target_type": OneOf(None, str),
    "classes": OneOf(None, [str]),
    "multi_label": bool,
    "fan_out": int,
    "seed": int,
    "columns": {},
    "ranking": Absent(OneOf(None, {"metrics": {}, "beta": float})),
}


@dataclass(frozen=True)
class GraphPurpose:
    """What a graph model predicts, and how rows ask for it.

    Attributes:
        node_type: The type of the nodes that are classified, or of the sources of links.
        columns: The columns of rows.
        classes: The names of the classes; `None` for links.
        multi_label: Whether a node may have several classes.
        target_type: The type of the targets of links.
        fan_out: Neighbours per relation and hop in evaluation; −1 for all of them.
        seed: Seed of their draws.
        ranking: For links, the cut-offs of "metrics" that files are measured by, and "beta".
    """

    node_type: str
    columns: GraphColumns
    classes: tuple[str, ...] | None = None
    multi_label: bool = False
    target_type: str | None = None
    fan_out: int = -1
    seed: int = 0
    ranking: Mapping[str, Any] | None = None

    @property
    def output_types(self) -> list[str]:
        """The types whose vectors the model computes."""
        return list(dict.fromkeys(t for t in (self.node_type, self.target_type) if t is not None))

    def ends(self) -> dict[str, str]:
        """The types of the ends of links, each type once; the targets come first."""
        assert self.target_type is not None
        same = self.target_type == self.node_type
        return {"targets": self.target_type, **({} if same else {"sources": self.node_type})}

    def facts(self) -> dict[str, Any]:
        """The purpose as `config.json` has it."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        classes = None if self.classes is None else list(self.classes)
        return {**own, "classes": classes, "columns": self.columns.facts()}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> GraphPurpose:
        """The purpose that `config.json` describes; raises a `SchemaError` for others."""
        check(facts, _SCHEMA)
        own: dict[str, Any] = {f.name: facts.get(f.name) for f in dataclasses.fields(cls)}
        classes = None if own["classes"] is None else tuple(own["classes"])
        columns = GraphColumns.from_facts(facts["columns"])
        if (classes is None) == (own["target_type"] is None):
            raise SchemaError("it describes neither classes of nodes nor links")
        if own["target_type"] is not None and columns.target is None:
            raise SchemaError("there is no column of targets")
        own |= {"classes": classes, "columns": columns}
        return cls(**own)


def write_exported_graph(
    folder: str | Path,
    model: GraphModel,
    config: GraphModelConfig,
    graph: Graph,
    purpose: GraphPurpose,
    training: Mapping[str, Any] | None = None,
    *,
    data: Mapping[str, Any] | None = None,
    cold: Int64[Tensor, " n"] | None = None,
) -> dict[str, Any]:
    """Write a graph model with the graph that it reads to a folder, atomically.

    Args:
        folder: The folder to write; it must be new or empty.
        model: The model.
        config: The configuration that the model was built from.
        graph: The graph.
        purpose: What is predicted.
        training: As for `write_exported`.
        data: Facts about the training data for the card, as plain values.
        cold: For links, sources without a training link, which are not evaluated.
    """
    part = read_part(graph, model.types_by_layer)
    facts, tensors = graph_state(part)
    rows = own_rows(model, [purpose.node_type])
    tensors |= {f"{_OWN_ROW}.{kind}": row for kind, row in rows.items()}
    ordered = sorted(tensors, key=lambda name: -tensors[name].element_size())  # each is aligned
    files = {GRAPH: {name: tensors[name] for name in ordered}}
    if purpose.target_type is not None:
        files[VECTORS] = link_vectors(model, part, purpose, cold)
    own = {"graph": {**purpose.facts(), **facts}}
    return write_model(folder, model, config, GRAPH_MODELS, own, files, training, data)


@torch.no_grad()
def own_rows(model: GraphModel, node_types: Sequence[str]) -> dict[str, Float32[Tensor, " dim"]]:
    """Node type → what stands for the row of a new node's id: the mean row of its type."""
    embeddings = model.embeddings
    specs = {feature.name: embeddings.spec_of(feature) for feature in embeddings.features}
    device = next(model.parameters()).device
    was_training = embeddings.training
    embeddings.eval()
    try:
        found = {}
        for kind in node_types:
            total = torch.zeros(specs[kind].dim, dtype=torch.float64)
            for ids in torch.arange(specs[kind].num_rows).split(CHUNK_ROWS):
                rows = embeddings({kind: ids.to(device)}, [kind])[kind]
                total += rows.double().sum(0).cpu()
            found[kind] = (total / specs[kind].num_rows).float()
        return found
    finally:
        embeddings.train(was_training)


def link_vectors(
    model: GraphModel, graph: Graph, purpose: GraphPurpose, cold: Int64[Tensor, " n"] | None
) -> dict[str, Tensor]:
    """The vectors of all nodes that links lead to, and from if these are of another type.

    Args:
        model: The model.
        graph: The graph that it reads.
        purpose: What is predicted.
        cold: Sources without a training link, which are returned, too.
    """
    encoder = GraphEncoder(model, graph, purpose.fan_out, purpose.seed)
    found = {
        name: encoder.encode(kind, np.arange(graph.nodes[kind].num_nodes))
        for name, kind in purpose.ends().items()
    }
    return {_COLD: torch.zeros(0, dtype=torch.int64) if cold is None else cold.cpu(), **found}


def build_graph_model(
    kind: str, settings: Mapping[str, Any], config: Mapping[str, Any], embeddings: Any
) -> GraphModel:
    """Build the graph model that a configuration describes."""
    purpose = GraphPurpose.from_facts(config["graph"])
    num_classes = None if purpose.classes is None else len(purpose.classes)
    return registered("model", kind, GRAPH_MODELS)(**settings).build(
        embeddings, schema_of(config["graph"]), purpose.output_types, num_classes, seed=0
    )


def load_predictor(
    folder: Path, config: Mapping[str, Any], model: GraphModel
) -> NodePredictor | LinkPredictor:
    """What predicts raw rows with an exported model."""
    purpose = GraphPurpose.from_facts(config["graph"])
    tensors = all_tensors(folder, GRAPH)
    try:
        graph = graph_from_state(config["graph"], tensors.__getitem__)
    except KeyError as error:
        raise unreadable(folder, f"{GRAPH} has no {error}") from None
    except SchemaError as error:
        raise unreadable(folder, f"graph in {CONFIG}: {error}") from None
    prefix = f"{_OWN_ROW}."
    rows = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    vectors = all_tensors(folder, VECTORS) if purpose.target_type is not None else {}
    if purpose.target_type is not None:
        _require_vectors(folder, graph, purpose, vectors)
    return make_predictor(model, graph, purpose, rows, vectors)


def make_predictor(
    model: GraphModel,
    graph: Graph,
    purpose: GraphPurpose,
    rows: Mapping[str, Tensor],
    vectors: Mapping[str, Tensor],
) -> NodePredictor | LinkPredictor:
    """What predicts raw rows with a model.

    Args:
        model: The model.
        graph: The graph that it reads.
        purpose: What is predicted.
        rows: What `own_rows` returned.
        vectors: For links, what `link_vectors` returned.
    """
    encoder = GraphEncoder(model, graph, purpose.fan_out, purpose.seed, rows)
    reader = NodeReader(graph, purpose.node_type, purpose.columns)
    if purpose.target_type is None:
        assert purpose.classes is not None
        return NodePredictor(encoder, reader, purpose.classes, multi_label=purpose.multi_label)
    targets, sources = vectors["targets"], vectors.get("sources")
    cold = vectors[_COLD].numpy()
    return LinkPredictor(encoder, reader, purpose.target_type, targets, sources, cold)


def _require_vectors(
    folder: Path, graph: Graph, purpose: GraphPurpose, vectors: Mapping[str, Tensor]
) -> None:
    kinds = purpose.ends()
    if set(vectors) != {_COLD, *kinds}:
        raise unreadable(folder, f"{VECTORS} does not hold {', '.join((_COLD, *kinds))}")
    for name, kind in kinds.items():
        if len(vectors[name]) != graph.nodes[kind].num_nodes:
            raise unreadable(folder, f"{VECTORS} does not hold the vectors of all {name}")
