"""A neighbourhood has the seeds' neighbours, drawn once per node, in the order they are found."""

import threading

import numpy as np
import pytest
import torch

from outsize.data.graphs.graph import Graph, IdBags, NodeType, Relation
from outsize.data.graphs.sampling import NeighborSampler
from outsize.data.prefetch import prefetch
from outsize.errors import ConfigError, DataError


def random_graph(num_nodes=60, num_edges=600, seed=0):
    draw = np.random.default_rng(seed)
    pairs = np.unique(draw.integers(0, num_nodes, (num_edges, 2)), axis=0)  # by target, by source
    starts = np.searchsorted(pairs[:, 0], np.arange(num_nodes + 1)).astype(np.int64)
    bags = IdBags(np.arange(num_nodes + 1, dtype=np.int64), np.arange(num_nodes)[::-1], num_nodes)
    nodes = {"node": NodeType(num_nodes, {"word": bags})}
    return Graph(nodes, {"edge": Relation("node", "node", starts, pairs[:, 1].astype(np.int32))})


def neighbors(graph, node):
    edges = graph.relations["edge"]
    return set(edges.sources[edges.starts[node] : edges.starts[node + 1]].tolist())


def test_all_neighbours_of_all_hops_are_there():
    graph = random_graph()
    found = NeighborSampler(graph, [-1, -1]).sample(np.array([3, 5, 3]), "node")
    nodes = found.nodes["node"].tolist()
    assert len(set(nodes)) == len(nodes)
    assert nodes[:2] == [3, 5]
    assert found.seeds.tolist() == [0, 1, 0]
    first = {3, 5} | neighbors(graph, 3) | neighbors(graph, 5)
    assert set(nodes[: found.within["node"][1]]) == first
    assert set(nodes) == first.union(*(neighbors(graph, node) for node in first))
    starts, sources = found.edges["edge"].within(1)
    for position in range(found.within["node"][1]):
        drawn = sources[starts[position] : starts[position + 1]]
        assert {nodes[i] for i in drawn} == neighbors(graph, nodes[position])


def test_a_fan_out_bounds_the_draw_and_no_neighbour_is_drawn_twice():
    graph = random_graph()
    found = NeighborSampler(graph, [4, 2]).sample(np.arange(10), "node")
    nodes, edges = found.nodes["node"].tolist(), found.edges["edge"]
    for position in range(found.within["node"][1]):
        drawn = edges.sources[edges.starts[position] : edges.starts[position + 1]].tolist()
        known = neighbors(graph, nodes[position])
        assert len(drawn) == len(set(drawn)) == min(4 if position < 10 else 2, len(known))
        assert {nodes[i] for i in drawn} <= known


def test_draws_are_uniform_over_neighbours():
    graph = random_graph()
    node = max(range(60), key=lambda n: len(neighbors(graph, n)))
    sampler, counts = NeighborSampler(graph, [3]), np.zeros(60)
    for number in range(200):
        counts[sampler.sample(np.array([node]), "node", number).nodes["node"][1:]] += 1
    known = sorted(neighbors(graph, node) - {node})
    share = counts[known] / counts.sum()
    assert abs(share - 1 / len(known)).max() < 5 * (1 / len(known) / 200 / 3) ** 0.5


def test_parts_of_a_batch_draw_what_the_whole_batch_draws():
    sampler = NeighborSampler(random_graph(), [2, 2], seed=7)

    def by_node(found):
        nodes, edges = found.nodes["node"], found.edges["edge"]
        pairs = zip(edges.starts[:-1], edges.starts[1:], strict=True)
        return {int(nodes[i]): nodes[edges.sources[a:b]].tolist() for i, (a, b) in enumerate(pairs)}

    whole = by_node(sampler.sample(np.arange(20), "node", 3))
    for part in (np.arange(10), np.arange(10, 20)[::-1].copy()):
        assert by_node(sampler.sample(part, "node", 3)).items() <= whole.items()
    assert by_node(sampler.sample(np.arange(20), "node", 4)) != whole


def test_attributes_are_the_bags_of_the_nodes():
    found = NeighborSampler(random_graph(), [2]).sample(np.array([9, 1]), "node")
    bag = found.attributes["node"]["word"]
    assert torch.equal(bag.values, 59 - found.nodes["node"])
    assert torch.equal(bag.offsets, torch.arange(len(found.nodes["node"])))


@pytest.mark.parametrize("fan_out", [[], [0], [3, -2]])
def test_a_fan_out_without_neighbours_is_refused(fan_out):
    with pytest.raises(ConfigError, match="fan_out needs a number of neighbours for each hop"):
        NeighborSampler(random_graph(), fan_out)


def large_graph(num_nodes=500, seed=1):
    """Two node types and three relations, large enough for compiled kernels."""
    draw = np.random.default_rng(seed)

    def relation(source, target):
        degrees = (draw.random(num_nodes) ** 6 * 100).astype(np.int64)
        starts = np.concatenate(([0], degrees.cumsum()))
        return Relation(source, target, starts, draw.integers(0, num_nodes, starts[-1], np.int32))

    nodes = {"paper": NodeType(num_nodes), "author": NodeType(num_nodes)}
    pairs = {"cites": ("paper", "paper"), "writes": ("author", "paper"), "of": ("paper", "author")}
    return Graph(nodes, {name: relation(*pair) for name, pair in pairs.items()})


def contents(found):
    """A neighbourhood as numbers."""
    edges = {name: (e.starts.tolist(), e.sources.tolist(), e) for name, e in found.edges.items()}
    return (
        {kind: ids.tolist() for kind, ids in found.nodes.items()},
        found.within,
        {name: (*lists, e.num_targets, e.num_edges) for name, (*lists, e) in edges.items()},
        found.seeds.tolist(),
    )


@pytest.mark.parametrize("fan_out", [[3, 5, 2], [-1], [70, 1]])
def test_compiled_sampling_equals_the_reference(monkeypatch, fan_out):
    graph, seeds = large_graph(), np.arange(0, 300, 7)
    found = {}
    for kernels in ("torch", "numba"):
        monkeypatch.setenv("OUTSIZE_KERNELS", kernels)
        sampler = NeighborSampler(graph, fan_out, seed=3)
        found[kernels] = [contents(sampler.sample(seeds, "paper", number)) for number in (0, 1)]
    assert found["torch"] == found["numba"]
    assert found["torch"][0] != found["torch"][1] or fan_out == [-1]


def test_threads_sample_at_once():
    sampler = NeighborSampler(large_graph(), [5, 5])
    seeds = np.arange(100)
    expected = [contents(sampler.sample(seeds, "paper", number)) for number in range(8)]
    found = [None] * 8

    def work(first):
        for number in range(first, 8, 4):
            found[number] = contents(sampler.sample(seeds, "paper", number))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_neighbourhoods_sampled_ahead_are_those_of_their_numbers_also_after_a_resume():
    sampler = NeighborSampler(large_graph(), [3, 3])
    batches = [(number, np.arange(number, 500, 9)) for number in range(6)]
    expected = [(n, contents(sampler.sample(seeds, "paper", n))) for n, seeds in batches]
    for first in (0, 4):

        def sampled(batch):
            number, seeds = batch
            return number, sampler.sample(seeds, "paper", number)

        ahead = prefetch(iter(batches[first:]), sampled)
        assert [(number, contents(found)) for number, found in ahead] == expected[first:]


@pytest.mark.parametrize("seeds", [[60], [-1, 3]])
def test_seeds_that_are_no_nodes_are_refused(seeds):
    with pytest.raises(DataError, match="but nodes of type 'node' are 0 … 59"):
        NeighborSampler(random_graph(), [2]).sample(np.array(seeds), "node")


def test_nodes_without_edges_and_no_seeds_have_empty_neighbourhoods():
    starts = np.array([0, 0, 2, 2], np.int64)
    graph = Graph(
        {"node": NodeType(3)},
        {"edge": Relation("node", "node", starts, np.array([1, 0], np.int32))},
    )
    for seeds, nodes, sources in (([2, 0], [2, 0], []), ([], [], []), ([1], [1, 0], [0, 1])):
        found = NeighborSampler(graph, [5, 5]).sample(np.array(seeds, np.int64), "node")
        assert found.nodes["node"].tolist() == nodes
        assert found.edges["edge"].sources.tolist() == sources
        assert found.edges["edge"].starts.shape[0] == len(nodes) + 1
