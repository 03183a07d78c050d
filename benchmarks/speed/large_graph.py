"""Memory and time of training on a graph that is memory-mapped, up to 10⁸ edges.

`python -m benchmarks.speed.large_graph` writes graphs with power-law degrees to a temporary folder,
and trains a two-layer GraphSAGE model on them: neighbourhoods are sampled ahead in a thread, node
rows are in a store. Linux only: memory is read from `/proc`.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.runner import run_command
from benchmarks.speed.power_law_graph import power_law_sources, power_law_starts
from outsize.bench import Benchmark
from outsize.collection import EmbeddingCollection
from outsize.contracts.neighborhood import Neighborhood
from outsize.data.graphs.graph import Graph, NodeType, Relation
from outsize.data.graphs.sampling import NeighborSampler
from outsize.data.prefetch import prefetch
from outsize.kernels.neighbors.aggregate import aggregate
from outsize.optimizers import RowAdagrad
from outsize.spec import FeatureSpec, TableSpec
from outsize.stores import LocalStore

ABOUT = "anonymous memory and time per step of GraphSAGE on memory-mapped graphs"
_SIZES = (1_000_000, 10_000_000, 100_000_000)
_QUICK_SIZES = (50_000,)
_DIM = 32
_HIDDEN = 128
_CLASSES = 50
_FAN_OUT = (10, 25)
_BATCH_SIZE = 1024
_WARM_STEPS = 5
_POLL_S = 0.005


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Train on graphs of growing size."""
    rows = []
    for num_edges in _QUICK_SIZES if quick else _SIZES:
        say(f"{num_edges:,} edges")
        with tempfile.TemporaryDirectory() as folder:
            graph = write_graph(Path(folder), num_edges)
            rows.append(measure_training(graph, num_steps=3 if quick else 40))
    setting = {"dim": _DIM, "hidden": _HIDDEN, "fan_out": list(_FAN_OUT), "batch_size": _BATCH_SIZE}
    return {**setting, "rows": rows}


def write_graph(folder: Path, num_edges: int) -> Graph:
    """Write a graph with power-law degrees, a chunk at a time; returns it memory-mapped."""
    starts = power_law_starts(num_edges)
    np.save(folder / "starts.npy", starts)
    with (folder / "sources").open("wb") as file:
        for chunk in power_law_sources(starts):
            chunk.tofile(file)
    edges = Relation(
        "node",
        "node",
        np.load(folder / "starts.npy", mmap_mode="r"),
        np.memmap(folder / "sources", np.int32, "r"),
    )
    return Graph({"node": NodeType(len(starts) - 1)}, {"edge": edges})


def measure_training(graph: Graph, num_steps: int, batch_size: int = _BATCH_SIZE) -> dict[str, Any]:
    """Train for some steps on random labels; the median time and the peak of anonymous memory."""
    num_nodes = graph.nodes["node"].num_nodes
    store = LocalStore([TableSpec("node", num_nodes, _DIM)])
    embeddings = EmbeddingCollection([FeatureSpec("node")], store)
    model = _Layers(_DIM)
    updates, rows = torch.optim.Adagrad(model.parameters(), 0.01), RowAdagrad(store, 0.01)
    row_bytes = sum(t.numel() * t.element_size() for t in store.buffers())
    labels = np.random.default_rng(1).integers(0, _CLASSES, num_nodes)
    sampler = NeighborSampler(graph, _FAN_OUT)

    def sampled(batch: tuple[int, NDArray[np.int64]]) -> tuple[int, Neighborhood]:
        number, seeds = batch
        return number, sampler.sample(seeds, "node", number)

    batches = list(_batches(num_nodes, batch_size, _WARM_STEPS + num_steps))
    step_s, sample_s = [], []
    with peak_anonymous_memory() as peak:
        last = time.perf_counter()
        for number, found in prefetch(iter(batches), sampled):
            updates.zero_grad()
            rows.zero_grad()
            scores = model(embeddings({"node": found.nodes["node"]})["node"], found)
            loss = F.cross_entropy(scores, torch.from_numpy(labels[batches[number][1]]))
            loss.backward()
            updates.step()
            rows.step()
            now = time.perf_counter()
            step_s.append(now - last)
            last = now
    for number, seeds in batches[_WARM_STEPS:]:
        started = time.perf_counter()
        sampler.sample(seeds, "node", number)
        sample_s.append(time.perf_counter() - started)
    edges = graph.relations["edge"]
    return {
        "num_edges": edges.num_edges,
        "num_nodes": num_nodes,
        "file_bytes": edges.sources.nbytes + edges.starts.nbytes,
        "row_bytes": row_bytes,
        "peak_bytes": peak[0],
        "edges_per_step": len(found.edges["edge"].sources),
        "nodes_per_step": len(found.nodes["node"]),
        "step_ms": statistics.median(step_s[_WARM_STEPS:]) * 1e3,
        "sample_ms": statistics.median(sample_s) * 1e3,
        "loss": float(loss.detach()),
    }


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    fan_out = " × ".join(map(str, results["fan_out"]))
    lines = [
        f"Two layers of width {results['hidden']} over rows of {results['dim']} numbers with "
        f"row-wise Adagrad; {results['batch_size']:,} seeds, fan-out {fan_out}; medians over "
        "steps. Anonymous memory is the peak of `RssAnon` while training, PyTorch included. Times "
        "are those of a shared machine.\n",
        "| edges | nodes | graph on disk, MB | node rows and clocks, MB | anonymous memory, MB | "
        "beside the rows, MB | edges per step | ms per step | ms of sampling alone |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in results["rows"]:
        others = row["peak_bytes"] - row["row_bytes"]
        lines.append(
            f"| {row['num_edges']:,} | {row['num_nodes']:,} | {row['file_bytes'] / 1e6:,.0f} | "
            f"{row['row_bytes'] / 1e6:,.0f} | {row['peak_bytes'] / 1e6:,.0f} | "
            f"{others / 1e6:,.0f} | {row['edges_per_step']:,} | {row['step_ms']:.0f} | "
            f"{row['sample_ms']:.1f} |"
        )
    return "\n".join(lines) + "\n"


class _Layers(nn.Module):
    """Two layers of GraphSAGE with mean aggregation."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2 * dim, _HIDDEN), nn.Linear(2 * _HIDDEN, _CLASSES)

    def forward(self, rows: Tensor, found: Neighborhood) -> Tensor:
        """Scores of the seeds."""
        hidden = F.relu(self.first(_with_neighbors(rows, found, 1)))
        scores: Tensor = self.second(_with_neighbors(hidden, found, 0))
        return scores[found.seeds]


def _with_neighbors(vectors: Tensor, found: Neighborhood, hops: int) -> Tensor:
    """The vectors of nodes within some hops, and the mean of their neighbours'."""
    starts, sources = found.edges["edge"].within(hops)
    return torch.cat((vectors[: len(starts) - 1], aggregate(vectors, starts, sources)), dim=1)


def _batches(num_nodes: int, size: int, num: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    draw = np.random.default_rng(0)
    for number in range(num):
        yield number, draw.integers(0, num_nodes, size)


@contextmanager
def peak_anonymous_memory() -> Iterator[list[int]]:
    """Watch this process; the list holds the peak of its anonymous memory in bytes."""
    peak, done = [anonymous_memory()], threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            peak[0] = max(peak[0], anonymous_memory())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
        peak[0] = max(peak[0], anonymous_memory())


def anonymous_memory() -> int:
    """Bytes of memory of this process that are not of files."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


BENCHMARK = Benchmark("large-graph", "python -m benchmarks.speed.large_graph", ABOUT, run, table)

if __name__ == "__main__":
    run_command(BENCHMARK)
