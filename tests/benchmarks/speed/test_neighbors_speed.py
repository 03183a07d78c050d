"""Sampling and aggregation are timed beside their peers, on graphs with power-law degrees."""

import numpy as np
import torch

from benchmarks.speed.neighbor_peers import has_torch_sparse, make_peers
from benchmarks.speed.neighbors import BENCHMARK
from benchmarks.speed.power_law_graph import power_law_graph
from outsize.bench import measure
from outsize.data.graphs.graph import Graph, NodeType, Relation
from outsize.data.graphs.sampling import NeighborSampler


def test_the_quick_form_times_samplers_beside_their_peers(tmp_path):
    results = measure(BENCHMARK, tmp_path, quick=True, quiet=True)
    (point,) = results["points"]
    peers = {"torch", "torch_with_replacement"}
    if has_torch_sparse():
        peers |= {"torch_sparse", "pyg_loader"}
    found = point["samplers"]
    assert set(results["peers"]) == set(found) - {"outsize"}
    assert peers <= set(found)
    for name in peers:
        expected = found["outsize"]["edges_per_s"] / found[name]["edges_per_s"]
        assert abs(results[f"speedup_vs_{name}"] / expected - 1) < 1e-9
    assert [row["how"] for row in results["aggregation"]] == ["mean", "max"]
    (page,) = tmp_path.glob("neighbors-*.md")
    assert "| torch | " in page.read_text()


def test_peers_sample_as_many_edges_of_each_node():
    starts, sources = power_law_graph(30_000)
    graph = Graph(
        {"node": NodeType(len(starts) - 1)}, {"edge": Relation("node", "node", starts, sources)}
    )
    seeds = torch.arange(0, 200, 3)
    expected = starts[seeds + 1] - starts[seeds]
    for fan_out in (1, 7, 3000):
        ours = NeighborSampler(graph, [fan_out]).sample(seeds.numpy(), "node")
        assert ours.edges["edge"].starts.diff().tolist() == np.minimum(expected, fan_out).tolist()
        for sample in make_peers(starts, sources, [fan_out]).values():
            assert sample(seeds) == len(ours.edges["edge"].sources)


def test_a_power_law_graph_has_all_its_edges_grouped_and_sorted():
    starts, sources = power_law_graph(40_000)
    assert starts[0] == 0
    assert starts[-1] == len(sources) == 40_000
    assert sources.dtype == np.int32
    assert sources.min() >= 0
    assert sources.max() < len(starts) - 1
    targets = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    assert (np.diff(targets * len(starts) + sources) >= 0).all()
    degrees = np.sort(np.diff(starts))[::-1]
    assert degrees[0] > 20 * degrees[len(degrees) // 2]
    np.testing.assert_array_equal(sources, power_law_graph(40_000)[1])
