"""From a configuration to the graph and the graph model of a run."""

from __future__ import annotations

from collections.abc import Sequence

from outsize.collection import EmbeddingCollection
from outsize.contracts.neighborhood import feature_of
from outsize.data import GraphData, GraphDataConfig, NodeLabels
from outsize.data.graphs.graph import Graph
from outsize.errors import ConfigError
from outsize.models import GraphModel, GraphModelConfig
from outsize.ranks.collectives import first_rank_first
from outsize.spec import FeatureSpec
from outsize.training.build import build_device, build_embeddings
from outsize.training.config import RunConfig
from outsize.training.memory_needs import (
    EmbeddingShapes,
    embedding_needs,
    graph_model_needs,
    require_memory,
    specs_of,
)


def build_graph_data(config: RunConfig) -> GraphData:
    """The graph of a run; one rank of a machine opens it first, and converts it if need be."""
    assert isinstance(config.data, GraphDataConfig)  # as `RunConfig` has made sure
    require_memory(config.data.memory_needs())
    with first_rank_first():
        return config.data.build()


def vocabularies_of(graph: Graph, node_types: Sequence[str]) -> dict[str, int]:
    """Feature → number of ids, of node types and their attributes."""
    sizes: dict[str, int] = {}
    for kind in node_types:
        nodes = graph.nodes[kind]
        sizes[kind] = max(1, nodes.num_nodes)
        for name, bags in nodes.attributes.items():
            sizes[feature_of(kind, name)] = max(1, bags.num_ids)
    return sizes


def build_graph_model(
    config: RunConfig,
    graph: Graph,
    output_types: Sequence[str],
    num_classes: int | None,
    num_train: int,
) -> GraphModel:
    """The graph model of a run, with embeddings of the node types that it reads.

    Refused where memory cannot hold it.

    Args:
        config: The run.
        graph: Its graph.
        output_types: The types of seeds.
        num_classes: Number of classes; `None` for links.
        num_train: Training examples, which bound a batch.
    """
    wanted = config.model
    assert isinstance(wanted, GraphModelConfig)
    node_types = graph.schema.types_by_layer(output_types, wanted.layers)[0]
    sizes = vocabularies_of(graph, node_types)
    features = [FeatureSpec(name, pooling="mean") for name in sizes]
    specs = specs_of(config, features, sizes)

    def build(embeddings: EmbeddingCollection) -> GraphModel:
        return wanted.build(embeddings, graph.schema, output_types, num_classes, config.seed)

    needs = embedding_needs(config, specs)
    shapes = EmbeddingShapes(features, specs)
    needs |= graph_model_needs(config, lambda: build(shapes), num_train)
    require_memory(needs, build_device(config.train.device))
    return build(build_embeddings(config, features, sizes))


def vocabularies_of_run(config: RunConfig) -> dict[str, int]:
    """Feature → number of ids, of the features that a run reads; builds its data.

    For a graph, of the node types that the classes of nodes are predicted from.
    """
    if not isinstance(config.data, GraphDataConfig):
        return dict(config.data.build().vocabularies)
    data = config.data.build()
    labels = require_labels(data)
    assert isinstance(config.model, GraphModelConfig)
    types = data.graph.schema.types_by_layer([labels.node_type], config.model.layers)[0]
    return vocabularies_of(data.graph, types)


def require_labels(data: GraphData) -> NodeLabels:
    """The labels of nodes; raises a `ConfigError` if there are none."""
    if data.labels is None:
        raise ConfigError(
            "graph.predict = 'nodes' needs labels, but the data has none: name them in [data], or "
            "set graph.predict = 'links'"
        )
    return data.labels
