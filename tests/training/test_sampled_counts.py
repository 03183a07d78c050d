import numpy as np
import torch
from graph_inputs import several_types

from outsize.data.graphs.sampling import NeighborSampler
from outsize.training.sampled_counts import expected_reads


def test_expected_reads_are_the_mean_of_what_is_drawn():
    graph = several_types()
    seeds = np.array([1, 4, 9])
    once = np.bincount(seeds, minlength=25) * 200
    found = expected_reads(graph, {"paper": once}, [2])
    drawn = torch.zeros(12)
    for number in range(200):
        hood = NeighborSampler(graph, [2]).sample(seeds, "paper", number)
        edges = hood.edges["writes"]
        drawn += torch.bincount(hood.nodes["author"][edges.sources], minlength=12)
    difference = (drawn - found["author"]).abs()
    assert drawn.sum() == found["author"].sum()
    assert difference.max() < 5 * 200**0.5 / 2


def test_with_all_neighbors_reads_are_paths():
    graph = several_types()
    once = np.zeros(25, np.int64)
    once[3] = 1
    found = expected_reads(graph, {"paper": once}, [-1, -1])
    paths = {kind: np.zeros(nodes.num_nodes) for kind, nodes in graph.nodes.items()}

    def walk(kind, node, hops):
        paths[kind][node] += 1
        for relation in graph.relations.values():
            if hops and relation.target == kind:
                for source in relation.sources[relation.starts[node] : relation.starts[node + 1]]:
                    walk(relation.source, source, hops - 1)

    walk("paper", 3, 2)
    for kind, counts in paths.items():
        assert found[kind].tolist() == counts.tolist()
    words = graph.nodes["paper"].attributes["words"]
    expected = np.bincount(words.values, np.repeat(paths["paper"], np.diff(words.starts)), 9)
    assert found["paper-words"].tolist() == expected.tolist()
