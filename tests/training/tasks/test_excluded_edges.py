import numpy as np
import torch
from graph_inputs import one_type, relation

from outsize.data.graphs.graph import Graph, NodeType
from outsize.data.graphs.sampling import NeighborSampler
from outsize.training.excluded_edges import relations_with_links_reversed, without_edges


def edges_of(hood, relation):
    """The edges of a neighbourhood by ids, and how many are within 0, 1, … hops."""
    edges, ids = hood.edges["edge"], hood.nodes["node"]
    lines = np.repeat(np.arange(len(edges.starts) - 1), np.diff(edges.starts.numpy()))
    return [(int(ids[s]), int(ids[t])) for s, t in zip(edges.sources, lines, strict=True)]


def test_excluded_edges_are_gone_and_all_others_stay():
    graph = one_type()
    hood = NeighborSampler(graph, [-1, -1]).sample(np.arange(0, 30, 3), "node")
    before = edges_of(hood, graph)
    gone = {before[0], before[3], before[-1], (29, 29)}
    sources, targets = torch.tensor(sorted(gone)).T
    found = without_edges(hood, graph, {"edge": (sources, targets)})
    assert edges_of(found, graph) == [edge for edge in before if edge not in gone]
    edges = found.edges["edge"]
    for hops, count in enumerate(edges.num_targets):
        starts, left = edges.within(hops)
        assert len(starts) == count + 1
        assert len(left) == int(starts[-1])
    assert found.within == hood.within
    assert found.nodes is hood.nodes


def test_relations_that_hold_links_in_the_other_direction_are_found():
    sources, targets = np.array([0, 1, 2, 2]), np.array([1, 2, 0, 1])
    forth = relation("a", "b", sources, targets, 3)
    back = relation("b", "a", targets, sources, 3)
    some = relation("b", "a", targets[:2], sources[:2], 3)
    nodes = {"a": NodeType(3), "b": NodeType(3)}
    links = np.stack((sources, targets))
    graph = Graph(nodes, {"forth": forth, "back": back, "some": some})
    assert relations_with_links_reversed(graph, "forth", links) == ("back",)
    both = np.concatenate((links, links[::-1]), axis=1)
    undirected = relation("n", "n", *both, 3)
    directed = relation("n", "n", *links, 3)
    graph = Graph({"n": NodeType(3)}, {"un": undirected, "di": directed})
    assert relations_with_links_reversed(graph, "un", links) == ("un",)
    assert relations_with_links_reversed(graph, "di", links) == ("un",)
