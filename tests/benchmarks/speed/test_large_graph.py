"""Training on a memory-mapped graph reads what it samples, and no more."""

import re
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed.large_graph import BENCHMARK, measure_training, write_graph
from benchmarks.speed.power_law_graph import power_law_graph
from outsize.data.graphs.graph import Graph, NodeType, Relation
from outsize.data.graphs.sampling import NeighborSampler

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


def mapped_bytes(path: Path) -> int:
    """How much of a file this process has touched."""
    maps = Path("/proc/self/smaps").read_text()
    sizes = re.findall(rf" {re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", maps)
    return sum(map(int, sizes)) * 1024


def test_a_written_graph_is_that_of_memory_and_trains(tmp_path):
    graph = write_graph(tmp_path, 100_000)
    starts, sources = power_law_graph(100_000)
    edges = graph.relations["edge"]
    np.testing.assert_array_equal(edges.starts, starts)
    np.testing.assert_array_equal(edges.sources, sources)
    row = measure_training(graph, num_steps=2, batch_size=64)
    assert row["peak_bytes"] > row["row_bytes"] > 0
    assert np.isfinite(row["loss"])
    page = BENCHMARK.table(
        {"hidden": 1, "dim": 1, "batch_size": 64, "fan_out": [10, 25], "rows": [row]}
    )
    assert "| 100,000 | 5,000 |" in page


def test_sampling_neither_copies_nor_touches_the_rest_of_a_graph(tmp_path):
    degree, num_nodes = 1 << 18, 512  # a file with holes: its 512 MB take no room
    path = tmp_path / "sources"
    with path.open("wb") as file:
        file.truncate(4 * degree * num_nodes)
    sources = np.memmap(path, np.int32, "r")
    starts = np.arange(num_nodes + 1, dtype=np.int64) * degree
    graph = Graph(
        {"node": NodeType(num_nodes)}, {"edge": Relation("node", "node", starts, sources)}
    )
    sampler = NeighborSampler(graph, [10, 25])
    sampler.sample(np.arange(2), "node")  # compiled by now
    before = mapped_bytes(path)
    tracemalloc.start()
    for number in range(3):
        sampler.sample(np.array([5 * number]), "node", number)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    # at most 35 edges per sample; the system maps up to 64 KB around each
    assert 0 < mapped_bytes(path) - before <= 3 * 35 * 65536 < sources.nbytes // 50
