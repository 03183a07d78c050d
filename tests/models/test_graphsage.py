from dataclasses import replace

import numpy as np
import pytest
import torch
from graph_inputs import all_rows, embeddings_of, one_type, several_types

from outsize.data.graphs.sampling import NeighborSampler
from outsize.errors import ConfigError
from outsize.models import GraphSAGE

AGGREGATIONS = ["mean", "gcn", "max"]


def neighbors(relation, node):
    return relation.sources[relation.starts[node] : relation.starts[node + 1]].tolist()


def weights_of(layer, kind, name, source):
    """W_type, W_r and, for max, P_r with its bias."""
    own = layer.own[layer.targets.index(kind)]
    key = next((key for key in layer.of_relation if plain(key) == name), None)
    between = layer.of_relation[key] if key else layer.own[layer.targets.index(source)]
    return own, between, layer.pool[key] if hasattr(layer, "pool") else None


def plain(key):
    return key.removeprefix("r_").replace("_-", ".").replace("__", "_")


def one_layer(layer, aggregate, graph, vectors):
    """The vectors of all nodes after a layer, node by node."""
    found = {}
    for kind in layer.targets:
        own = layer.own[layer.targets.index(kind)]
        rows = []
        for node in range(graph.nodes[kind].num_nodes):
            total, count = own.weight @ vectors[kind][node], 1
            for name, relation in graph.relations.items():
                if relation.target != kind:
                    continue
                _, between, pool = weights_of(layer, kind, name, relation.source)
                around = [vectors[relation.source][u] for u in neighbors(relation, node)]
                count += len(around)
                if aggregate == "gcn":
                    total = total + sum((between.weight @ h for h in around), 0)
                elif around and aggregate == "mean":
                    total = total + between.weight @ torch.stack(around).mean(0)
                elif around:
                    pooled = torch.stack([pool(h).relu() for h in around]).amax(0)
                    total = total + between.weight @ pooled
            rows.append((total / count if aggregate == "gcn" else total) + own.bias)
        found[kind] = torch.stack(rows)
    return found


def by_definition(model, aggregate, graph):
    """What the model computes for all nodes, from the formula."""
    rows = all_rows(model.embeddings)
    vectors = {}
    for kind, nodes in graph.nodes.items():
        parts = [rows[kind]]
        for name, bags in nodes.attributes.items():
            pooled = torch.zeros(nodes.num_nodes, rows[kind].shape[1])
            for node in range(nodes.num_nodes):
                values = bags.values[bags.starts[node] : bags.starts[node + 1]]
                if len(values):
                    pooled[node] = rows[f"{kind}-{name}"][torch.from_numpy(values)].mean(0)
            parts.append(pooled)
        vectors[kind] = torch.cat(parts, dim=1)
    for number, layer in enumerate(model.layers):
        vectors = one_layer(layer, aggregate, graph, vectors)
        if number < model.num_layers - 1 or model.head is not None:
            vectors = {kind: values.relu() for kind, values in vectors.items()}
    return {kind: model.finish(values) for kind, values in vectors.items()}


@pytest.mark.parametrize("over", ["store", "tables"])
@pytest.mark.parametrize("aggregate", AGGREGATIONS)
@pytest.mark.parametrize("make", [one_type, several_types])
def test_a_model_computes_its_formula_on_full_neighborhoods(make, aggregate, over):
    graph = make()
    kind = next(iter(graph.nodes))
    embeddings = embeddings_of(graph, over=over)
    model = GraphSAGE(
        embeddings, graph.schema, [kind], 3, hidden=5, aggregate=aggregate, normalize=True
    )
    expected = by_definition(model, aggregate, graph)[kind]
    asked = np.array([7, 2, 7, 0])
    found = model(NeighborSampler(graph, [-1, -1]).sample(asked, kind))
    torch.testing.assert_close(found, expected[asked])
    found.sum().backward()
    weights = dict(model.named_parameters())
    assert weights
    assert all(weight.grad is not None for weight in weights.values()), "DDP needs every gradient"


@pytest.mark.parametrize("max_edges", [1, 7, 1 << 18])
@pytest.mark.parametrize("aggregate", AGGREGATIONS)
@pytest.mark.parametrize("make", [one_type, several_types])
def test_encoding_layer_by_layer_equals_full_neighborhoods(make, aggregate, max_edges):
    graph = make()
    kind = next(iter(graph.nodes))
    model = GraphSAGE(embeddings_of(graph), graph.schema, [kind], hidden=5, aggregate=aggregate)
    model.eval()
    nodes = np.arange(graph.nodes[kind].num_nodes)
    expected = model(NeighborSampler(graph, [-1, -1]).sample(nodes, kind))
    one_hop = NeighborSampler(graph, [-1])
    everything = model.encode_all(one_hop, kind, max_edges=max_edges)
    torch.testing.assert_close(everything, expected)
    some = np.array([4, 0, 11])
    torch.testing.assert_close(model.encode_all(one_hop, kind, some), expected[some])


def test_encoding_layer_by_layer_reads_only_the_nodes_that_are_needed():
    graph = one_type()
    model = GraphSAGE(embeddings_of(graph), graph.schema, ["node"], hidden=5).eval()
    read = []
    look_up = model.embeddings.ragged
    model.embeddings.ragged = lambda inputs, only: (
        read.extend(inputs["node"].tolist()) or look_up(inputs, only)
    )
    isolated = graph.nodes["node"].num_nodes - 1
    assert graph.relations["edge"].starts[isolated] == graph.relations["edge"].starts[isolated + 1]
    model.encode_all(NeighborSampler(graph, [-1]), "node", np.array([isolated]))
    assert read == [isolated]


def test_het_has_our_own_number_of_parameters():
    graph = one_type()
    model = GraphSAGE.het(embeddings_of(graph, dim=128), graph.schema, ["node"], num_classes=41)
    per_layer = 128 * 128 + 128 + 128 * 128
    count = sum(weight.numel() for weight in model.parameters())
    assert count == 2 * per_layer + 128 * 41 + 41 == 71_081
    with pytest.raises(ConfigError, match="128"):
        GraphSAGE.het(embeddings_of(graph, dim=4), graph.schema, ["node"])


def test_types_that_cannot_reach_a_seed_have_no_weights():
    graph = several_types()
    model = GraphSAGE(embeddings_of(graph), graph.schema, ["author"], 2, hidden=5, layers=1)
    assert model.types_by_layer[0] == ["paper", "author"]
    assert model.layers[0].targets == ("author",)


def test_an_empty_batch_has_gradients_of_zero():
    graph = several_types()
    for aggregate in AGGREGATIONS:
        model = GraphSAGE(
            embeddings_of(graph), graph.schema, ["paper"], 3, hidden=5, aggregate=aggregate
        )
        hood = NeighborSampler(graph, [2, 2]).sample(np.zeros(0, np.int64), "paper")
        found = model(hood)
        assert found.shape == (0, 3)
        found.sum().backward()
        assert all(not weight.grad.any() for weight in model.parameters())


def test_dropout_is_of_the_draw_and_the_node_and_off_in_evaluation():
    graph = one_type()
    model = GraphSAGE(
        embeddings_of(graph, dim=64), graph.schema, ["node"], hidden=5, dropout=0.5, layers=1
    )
    sampler = NeighborSampler(graph, [-1])
    hood = sampler.sample(np.array([0, 1, 2]), "node")
    part = sampler.sample(np.array([2]), "node")
    later = replace(hood, number=1)
    torch.testing.assert_close(model(hood)[2:], model(part))
    assert not torch.equal(model(hood), model(later))
    model.eval()
    assert torch.equal(model(hood), model(later))


def test_hidden_seeds_are_predicted_by_their_neighbors():
    graph = one_type()
    embeddings = embeddings_of(graph, over="tables")
    model = GraphSAGE(embeddings, graph.schema, ["node"], hidden=5, seed_dropout=1.0)
    seeds = np.array([0, 1, 2])
    hood = NeighborSampler(graph, [-1, -1]).sample(seeds, "node")
    model(hood).square().sum().backward()
    (weight,) = embeddings.parameters()
    assert not weight.grad[seeds].any()
    assert weight.grad[hood.nodes["node"][3:]].any()
    plain = GraphSAGE(embeddings, graph.schema, ["node"], hidden=5)
    assert torch.equal(model.eval()(hood), plain.eval()(hood))
    half = GraphSAGE(embeddings, graph.schema, ["node"], hidden=5, seed_dropout=0.5)
    whole = NeighborSampler(graph, [-1, -1]).sample(np.arange(30), "node")
    hidden = ~half.read(whole)["node"].any(dim=1)
    assert 5 < int(hidden.sum()) < 25


def test_dropout_drops_its_share_and_keeps_the_mean():
    from outsize.models.stateless_dropout import drop_numbers

    values = torch.ones(4000, 30)
    found = drop_numbers(values, torch.arange(4000), 0.3, seed=1)
    assert abs(float((found == 0).double().mean()) - 0.3) < 0.006
    assert abs(float(found.double().mean()) - 1) < 0.01
    assert abs(float((found[1:] == found[:-1]).double().mean()) - (0.3**2 + 0.7**2)) < 0.01
    assert abs(float((found[:, 1:] == found[:, :-1]).double().mean()) - 0.58) < 0.01


def test_wrong_shapes_are_refused_in_words():
    graph = one_type()
    embeddings = embeddings_of(graph)
    with pytest.raises(ConfigError, match="no node type 'user': it has node"):
        GraphSAGE(embeddings, graph.schema, ["user"])
    with pytest.raises(ConfigError, match="aggregate must be one of mean, gcn, max"):
        GraphSAGE(embeddings, graph.schema, ["node"], aggregate="lstm")
    with pytest.raises(ConfigError, match="dropout must be"):
        GraphSAGE(embeddings, graph.schema, ["node"], dropout=1.0)
    with pytest.raises(ConfigError, match="the embeddings have no feature 'paper'"):
        GraphSAGE(embeddings, several_types().schema, ["paper"])
    model = GraphSAGE(embeddings, graph.schema, ["node"])
    with pytest.raises(ConfigError, match="2 layers reads as many hops"):
        model(NeighborSampler(graph, [2]).sample(np.array([0]), "node"))
