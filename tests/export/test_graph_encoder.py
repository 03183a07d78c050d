"""New nodes get the vectors that nodes of the graph with the same edges would get."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from graph_inputs import embeddings_of, several_types

from outsize.contracts.neighborhood import GraphSchema
from outsize.data.graphs.graph import Graph, IdBags, NodeType
from outsize.data.graphs.sampling import NeighborSampler
from outsize.export.graph_encoder import GraphEncoder, Lists, NewNodes
from outsize.models import GraphSAGE

NEIGHBORS = {"cites": [[3, 3, 24], []], "writes": [[0], [11, 2]], "publishes": [[], [1]]}
WORDS = [[8, 2], []]


def lists(rows):
    lengths = np.array([len(row) for row in rows])
    return Lists.of(lengths, np.array(list(chain(*rows)), np.int64))


def with_papers(graph, neighbors, words):
    """The graph with further papers, which have edges to them only."""

    def extended(starts, values, rows):
        more = starts[-1] + np.cumsum([len(row) for row in rows])
        return np.append(starts, more), np.append(values, list(chain(*rows))).astype(np.int64)

    bags = graph.nodes["paper"].attributes["words"]
    starts, values = extended(bags.starts, bags.values, words)
    papers = NodeType(25 + len(words), {"words": IdBags(starts, values, bags.num_ids)})
    relations = {}
    for name, edges in graph.relations.items():
        if edges.target == "paper":
            rows = neighbors.get(name, [[] for _ in words])
            starts, sources = extended(edges.starts, edges.sources, rows)
            edges = replace(edges, starts=starts, sources=sources)
        relations[name] = edges
    return Graph({**graph.nodes, "paper": papers}, relations)


def model_of(graph, **settings):
    model = GraphSAGE(embeddings_of(graph, over="tables"), graph.schema, ["paper"], 3, **settings)
    return model.eval()


@pytest.mark.parametrize(
    ("aggregate", "layers"), [("mean", 1), ("mean", 2), ("mean", 3), ("gcn", 2), ("max", 2)]
)
@torch.no_grad()
def test_a_new_node_is_as_one_of_the_graph_with_its_edges(aggregate, layers):
    graph = several_types()
    settings = {"hidden": 5, "aggregate": aggregate, "layers": layers, "seed": 1}
    model = model_of(graph, **settings)
    larger = with_papers(graph, NEIGHBORS, WORDS)
    expected = model_of(larger, **settings)
    own = torch.tensor([0.5, -1.0, 2.0, 0.1])
    for name, table in expected.embeddings.tables.items():
        rows = model.embeddings.tables[name].weight
        table.weight[: len(rows)] = rows
    expected.embeddings.tables["paper"].weight[25:] = own
    wanted = expected.encode_all(NeighborSampler(larger, [-1]), "paper", np.array([25, 4, 26]))
    neighbors = {name: lists(rows) for name, rows in NEIGHBORS.items()}
    new = NewNodes(2, neighbors, {"words": lists(WORDS)})
    encoder = GraphEncoder(model, graph, own_rows={"paper": own})
    found = encoder.encode("paper", np.array([-1, 4, -1]), new)
    torch.testing.assert_close(found, wanted)
    assert not model.training


@torch.no_grad()
def test_relations_and_attributes_that_are_not_given_are_empty():
    graph = several_types()
    model = model_of(graph, hidden=5)
    encoder = GraphEncoder(model, graph)
    some = NewNodes(1, {"writes": lists([[3]])})
    empty = {name: lists([[]]) for name in ("cites", "cited.by", "publishes")}
    same = NewNodes(1, {**some.neighbors, **empty}, {"words": lists([[]])})
    asked = np.array([-1])
    assert torch.equal(encoder.encode("paper", asked, some), encoder.encode("paper", asked, same))


def test_lists_are_taken_and_shortened():
    some = lists([[1, 2], [], [3, 4, 5]])
    taken = some.take(np.array([False, True, True]))
    assert (taken.starts.tolist(), taken.values.tolist()) == ([0, 0, 3], [3, 4, 5])
    left = some.without(some.values % 2 == 0)
    assert (left.starts.tolist(), left.values.tolist()) == ([0, 1, 1, 3], [1, 3, 5])


def test_only_what_a_model_reads_is_exported():
    from outsize.export.graph_tensors import read_part

    graph = several_types()
    one_layer = model_of(graph, hidden=5, layers=1)
    part = read_part(graph, one_layer.types_by_layer)
    assert set(part.relations) == {"cites", "cited.by", "writes", "publishes"}
    assert isinstance(part.schema, GraphSchema)
    assert part.schema.types_by_layer(["paper"], 1) == one_layer.types_by_layer
