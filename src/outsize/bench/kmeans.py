"""The two loops of k-means beside their peers: nearest centroids, and sums per cluster.

The peers of the search are `faiss.knn` and the torch engine of `outsize.clustering.nearest`; that
of the sums is torch's `bincount`, once per dimension.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from outsize.bench.runner import Benchmark
from outsize.bench.timing import time_in_turns
from outsize.clustering import nearest
from outsize.clustering.sums import prepare_sums

ABOUT = "milliseconds of nearest centroids and of sums per cluster beside faiss and torch"
# Points × centroids × dim, at most. All settings have enough points for the fused kernel of faiss.
_MOST_PRODUCTS = 1 << 33
_CHUNK = 1 << 17


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Time the engines in turns, at several dims, numbers of clusters and threads."""
    most = torch.get_num_threads()
    points = [(4, 1_000, most), (4, 1_000, 1)]
    points += [(dim, k, most) for dim in (4, 8, 16) for k in (100, 10_000, 50_000)]
    points += [(8, 1_000, most), (16, 1_000, most)]
    rows = []
    try:
        for dim, k, threads in [(3, 7, 1)] if quick else points:
            num_points = 1_000 if quick else min(_CHUNK, _MOST_PRODUCTS // (k * dim))
            say(f"dim {dim}, {k:,} clusters, {num_points:,} points, {threads} threads")
            torch.set_num_threads(threads)
            rows.append(_measure(dim, k, num_points, rounds=3 if quick else 7))
            rows[-1]["threads"] = threads
    finally:
        torch.set_num_threads(most)
    speedups = {name: value for name, value in rows[0].items() if name.startswith("speedup_vs")}
    return {"rows": rows, **speedups}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    names = list(results["rows"][0]["search"])
    lines = [
        "Milliseconds of one search of all points and of one sum per cluster (median of rounds "
        "taken in turns; p10 to p90 in brackets).\n",
        f"| dim | clusters | points | threads | {' | '.join(f'search, {n}' for n in names)} "
        "| sums, numba | sums, torch |",
        "|--:|--:|--:|--:|" + "--:|" * (len(names) + 2),
    ]
    for row in results["rows"]:
        cells = [
            "{median_ms:.2f} ({p10_ms:.2f} to {p90_ms:.2f})".format(**timing)
            for timing in (*row["search"].values(), *row["sums"].values())
        ]
        sizes = f"{row['dim']} | {row['clusters']:,} | {row['points']:,} | {row['threads']}"
        lines.append(f"| {sizes} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _measure(dim: int, k: int, num_points: int, rounds: int) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(num_points, dim, generator=draw)
    centroids = torch.randn(k, dim, generator=draw)
    searches: dict[str, Callable[[], object]] = {
        "numba": partial(nearest, points[None], centroids[None], "numba"),
        "torch": partial(nearest, points[None], centroids[None], "torch"),
    }
    if importlib.util.find_spec("faiss"):
        searches["faiss"] = partial(_search_by_faiss, points, centroids)
    search = time_in_turns(searches, rounds=rounds, calls=1)
    labels, weights = nearest(points[None], centroids[None])[0], torch.rand(num_points).double()
    adders = {}
    for engine in ("numba", "torch"):
        with _kernels(engine):
            adders[engine] = partial(prepare_sums(points, weights, k), labels)
    sums = time_in_turns(adders, rounds=rounds, calls=1)
    ours = search["numba"].median_s
    return {
        "dim": dim,
        "clusters": k,
        "points": num_points,
        **{f"speedup_vs_{n}": t.median_s / ours for n, t in search.items() if n != "numba"},
        "sums_speedup_vs_torch": sums["torch"].median_s / sums["numba"].median_s,
        "search": {name: timing.in_ms() for name, timing in search.items()},
        "sums": {name: timing.in_ms() for name, timing in sums.items()},
    }


def _search_by_faiss(points: Tensor, centroids: Tensor) -> object:
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss.knn(points.numpy(), centroids.numpy(), 1)


@contextmanager
def _kernels(engine: str) -> Iterator[None]:
    """Let `OUTSIZE_KERNELS` be an engine for a while."""
    before = os.environ.get("OUTSIZE_KERNELS")
    os.environ["OUTSIZE_KERNELS"] = engine
    try:
        yield
    finally:
        del os.environ["OUTSIZE_KERNELS"]
        if before is not None:
            os.environ["OUTSIZE_KERNELS"] = before


BENCHMARK = Benchmark("kmeans", "outsize bench kmeans", ABOUT, run, table)
