"""Sampling neighbours and aggregating their vectors on the CPU, beside torch and torch_geometric.

All samplers work on the same graph and the same seeds in one process, in turns. They draw the same
number of edges of each node, but not the same ones, so what is compared is the time per edge.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.runner import run_command
from benchmarks.speed.neighbor_peers import describe, make_peers
from benchmarks.speed.power_law_graph import power_law_graph
from outsize.bench import Benchmark
from outsize.bench.timing import time_in_turns
from outsize.data.graphs.graph import Graph, NodeType, Relation
from outsize.data.graphs.sampling import NeighborSampler
from outsize.kernels.neighbors.aggregate import Aggregation, aggregate

ABOUT = "edges per second of sampling and aggregating neighbours beside torch and torch_geometric"
_BATCHES_KEPT = 3
_LARGEST = 100_000_000
_LARGEST_NEEDS = 8_000_000_000  # bytes of free memory, for all samplers
_HOWS: tuple[Aggregation, ...] = ("mean", "max")


@dataclass(frozen=True)
class Shape:
    """One setting of sampling.

    Attributes:
        num_edges: Edges of the graph.
        fan_out: Neighbours per hop, from the seeds outwards.
        batch_size: Seeds per call.
        num_threads: Threads of torch.
    """

    num_edges: int = 1_000_000
    fan_out: tuple[int, ...] = (10, 25)
    batch_size: int = 1024
    num_threads: int = 2


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure the first setting, then growth in fan-out, batch, graph and threads; aggregation."""
    first = Shape(num_threads=min(2, torch.get_num_threads()))
    if quick:
        first = replace(first, num_edges=20_000, fan_out=(3, 3), batch_size=32)
    rounds = 3 if quick else 9
    before = torch.get_num_threads()
    kept: dict[int, tuple[NDArray[np.int64], NDArray[np.int32]]] = {}
    try:
        points = []
        for shape in [first, *([] if quick else _growth(first))]:
            say(f"{shape.num_edges:,} edges, {_dashed(shape.fan_out)} × {shape.batch_size:,}")
            if shape.num_edges not in kept:
                kept = {shape.num_edges: power_law_graph(shape.num_edges)}
            graph = kept[shape.num_edges]
            points.append(measure_shape(shape, graph, rounds=rounds, loader=shape is first))
        say("aggregation")
        kept = {first.num_edges: power_law_graph(first.num_edges)}
        sums = [
            measure_aggregation(first, kept[first.num_edges], dim, how, rounds=rounds)
            for dim in ((8,) if quick else (16, 128))
            for how in _HOWS
        ]
    finally:
        torch.set_num_threads(before)
    speedups = {name: value for name, value in points[0].items() if name.startswith("speedup_vs")}
    peers = {name: describe(name) for name in points[0]["samplers"] if name != "outsize"}
    return {"points": points, "aggregation": sums, "peers": peers, **speedups}


def measure_shape(
    shape: Shape,
    graph: tuple[NDArray[np.int64], NDArray[np.int32]],
    *,
    rounds: int,
    loader: bool = True,
) -> dict[str, Any]:
    """Time all samplers in turns, each over the same batches of seeds.

    Args:
        shape: The setting.
        graph: Starts and sources.
        rounds: Turns per sampler.
        loader: Whether to time `NeighborLoader` beside the sampler that it calls.
    """
    torch.set_num_threads(shape.num_threads)
    batches = _seeds(shape, len(graph[0]) - 1)
    peers = make_peers(*graph, shape.fan_out, loader=loader)
    samplers = {"outsize": _outsize(graph, shape), **peers}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        edges = {
            name: sum(sample(seeds) for seeds in batches) / len(batches)
            for name, sample in samplers.items()
        }
        turns = {name: _over(batches, sample) for name, sample in samplers.items()}
        timings = time_in_turns(turns, rounds=rounds, calls=len(batches), warmup=0)
    per_edge = {name: timings[name].median_s / max(edges[name], 1) for name in samplers}
    return {
        **asdict(shape),
        "fan_out": list(shape.fan_out),
        "samplers": {
            name: {
                **timing.in_ms(),
                "edges": edges[name],
                "edges_per_s": 1 / per_edge[name],
            }
            for name, timing in timings.items()
        },
        **{
            f"speedup_vs_{name}": seconds / per_edge["outsize"]
            for name, seconds in per_edge.items()
            if name != "outsize"
        },
    }


def measure_aggregation(
    shape: Shape,
    graph: tuple[NDArray[np.int64], NDArray[np.int32]],
    dim: int,
    how: Aggregation,
    *,
    rounds: int,
) -> dict[str, Any]:
    """Time forward and backward of one layer over a sampled neighbourhood."""
    torch.set_num_threads(shape.num_threads)
    sampler = NeighborSampler(_graph(graph), shape.fan_out)
    found = sampler.sample(_seeds(shape, len(graph[0]) - 1)[0].numpy(), "node")
    edges = found.edges["edge"]
    starts, sources = edges.starts, edges.sources
    draw = torch.Generator().manual_seed(0)
    vectors = torch.randn(len(found.nodes["node"]), dim, generator=draw, requires_grad=True)
    gradient = torch.randn(len(starts) - 1, dim, generator=draw)
    targets = torch.arange(len(starts) - 1).repeat_interleave(starts.diff())
    counts = starts.diff().clamp(min=1).unsqueeze(1)

    def by_index_add() -> Tensor:
        total = torch.zeros_like(gradient).index_add(0, targets, vectors.index_select(0, sources))
        return total / counts

    def by_bags() -> Tensor:
        return F.embedding_bag(sources, vectors, starts, mode=how, include_last_offset=True)

    ways: dict[str, Callable[[], Tensor]] = {
        "outsize": lambda: aggregate(vectors, starts, sources, how),
        "embedding_bag": by_bags,
    }
    if how == "mean":
        ways["index_add"] = by_index_add

    def step(way: Callable[[], Tensor]) -> None:
        vectors.grad = None
        way().backward(gradient)

    steps = {name: partial(step, way) for name, way in ways.items()}
    timings = time_in_turns(steps, rounds=rounds, calls=3)
    ours = timings["outsize"].median_s
    return {
        "how": how,
        "dim": dim,
        "edges": len(sources),
        "num_threads": shape.num_threads,
        "ways": {name: timing.in_ms() for name, timing in timings.items()},
        **{
            f"speedup_vs_{name}": timings[name].median_s / ours
            for name in ways
            if name != "outsize"
        },
    }


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    names = list(dict.fromkeys(name for point in results["points"] for name in point["samplers"]))
    lines = [
        "Millions of edges per second of sampled neighbourhoods, nodes renumbered (from medians of "
        "rounds taken in turns; in brackets the milliseconds of a call, p10 to p90). Graphs have "
        "power-law degrees, 20 edges per node. Read ratios, not absolute numbers.\n",
        f"| edges of the graph | fan-out | seeds | threads | edges | {' | '.join(names)} |",
        "|--:|--:|--:|--:|--:|" + "--:|" * len(names),
    ]
    for point in results["points"]:
        found = point["samplers"]
        cells = [
            "{:.2f} ({p10_ms:.1f} to {p90_ms:.1f})".format(
                found[name]["edges_per_s"] / 1e6, **found[name]
            )
            if name in found
            else "–"
            for name in names
        ]
        lines.append(
            f"| {point['num_edges']:,} | {_dashed(point['fan_out'])} | {point['batch_size']:,} | "
            f"{point['num_threads']} | {found['outsize']['edges']:,.0f} | {' | '.join(cells)} |"
        )
    lines += [
        "\nTime per edge as a multiple of that of `outsize`. On a busy machine torch's threads "
        "wait for each other: there the fairer comparison is that with one thread.\n",
        "| peer | first setting | one thread | all settings | what it is |",
        "|---|--:|--:|--:|---|",
    ]
    for name, about in results["peers"].items():
        key = f"speedup_vs_{name}"
        known = [point for point in results["points"] if key in point]
        ratios = [point[key] for point in known]
        alone = next((f"{p[key]:.1f}×" for p in known if p["num_threads"] == 1), "–")
        lines.append(
            f"| {name} | {ratios[0]:.1f}× | {alone} | {min(ratios):.1f}× to {max(ratios):.1f}× | "
            f"{about} |"
        )
    lines.append(
        "\nForward and backward of one layer over the edges of the first setting, in milliseconds "
        "(p10 to p90 in brackets):\n"
    )
    ways = list(dict.fromkeys(name for row in results["aggregation"] for name in row["ways"]))
    lines += [
        f"| aggregate | dim | edges | {' | '.join(ways)} |",
        "|---|--:|--:|" + "--:|" * len(ways),
    ]
    for row in results["aggregation"]:
        cells = [
            "{median_ms:.2f} ({p10_ms:.2f} to {p90_ms:.2f})".format(**row["ways"][name])
            if name in row["ways"]
            else "–"
            for name in ways
        ]
        lines.append(f"| {row['how']} | {row['dim']} | {row['edges']:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _growth(first: Shape) -> Iterator[Shape]:
    if first.num_threads > 1:
        yield replace(first, num_threads=1)
    for fan_out in ((2, 2), (10, 10), (25, 25)):
        yield replace(first, fan_out=fan_out)
    for batch_size in (128, 4096):
        yield replace(first, batch_size=batch_size)
    yield replace(first, num_edges=100_000)
    yield replace(first, num_edges=10_000_000)
    if _free_bytes() >= _LARGEST_NEEDS:
        yield replace(first, num_edges=_LARGEST)


def _free_bytes() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # of other systems
        return 0


def _over(batches: list[Tensor], sample: Callable[[Tensor], int]) -> Callable[[], int]:
    """Calls that take the batches in turn."""
    turn = cycle(batches)
    return lambda: sample(next(turn))


def _seeds(shape: Shape, num_nodes: int) -> list[Tensor]:
    """Batches of different nodes."""
    draw = np.random.default_rng(0)
    size = min(shape.batch_size, num_nodes)
    return [
        torch.from_numpy(draw.choice(num_nodes, size, replace=False)) for _ in range(_BATCHES_KEPT)
    ]


def _graph(arrays: tuple[NDArray[np.int64], NDArray[np.int32]]) -> Graph:
    edges = Relation("node", "node", *arrays)
    return Graph({"node": NodeType(len(arrays[0]) - 1)}, {"edge": edges})


def _outsize(
    graph: tuple[NDArray[np.int64], NDArray[np.int32]], shape: Shape
) -> Callable[[Tensor], int]:
    sampler = NeighborSampler(_graph(graph), shape.fan_out)
    number = 0

    def sample(seeds: Tensor) -> int:
        nonlocal number
        number += 1
        return len(sampler.sample(seeds.numpy(), "node", number).edges["edge"].sources)

    return sample


def _dashed(fan_out: Any) -> str:
    return " × ".join(map(str, fan_out))


BENCHMARK = Benchmark("neighbors", "python -m benchmarks.speed.neighbors", ABOUT, run, table)

if __name__ == "__main__":
    run_command(BENCHMARK)
