"""The two loops of k-means beside their peers: nearest centroids, and sums per cluster.

The peers of the search are `faiss.knn` and the torch engine of `outsize.clustering.nearest`; that
of the sums is torch's `bincount`, once per dimension. On a GPU our kernels are Triton's, the peers
are the torch engine and the same search written by hand for `torch.compile`, and the sums of torch
are atomic additions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from outsize.bench.conditions import kernels_of
from outsize.bench.runner import Benchmark
from outsize.bench.timing import cell, time_in_turns
from outsize.clustering import nearest
from outsize.clustering.engine import EngineName
from outsize.clustering.sums import prepare_sums
from outsize.kernels.threads import torch_threads

ABOUT = "milliseconds of nearest centroids and of sums per cluster beside faiss and torch"
# Points × centroids × dim, at most. All settings have enough points for the fused kernel of faiss.
_MOST_PRODUCTS = 1 << 33
_CHUNK = 1 << 17
_CUDA_POINTS = 1 << 19


def run(quick: bool, say: Callable[[str], None], device: str = "cpu") -> dict[str, Any]:
    """Time the engines in turns, at several dims, numbers of clusters and threads."""
    if device == "cuda":
        return _run_on_cuda(quick, say)
    most = torch.get_num_threads()
    points = [(4, 1_000, most), (4, 1_000, 1)]
    points += [(dim, k, most) for dim in (4, 8, 16) for k in (100, 10_000, 50_000)]
    points += [(8, 1_000, most), (16, 1_000, most)]
    rows = []
    with torch_threads():
        for dim, k, threads in [(3, 7, 1)] if quick else points:
            num_points = 1_000 if quick else min(_CHUNK, _MOST_PRODUCTS // (k * dim))
            say(f"dim {dim}, {k:,} clusters, {num_points:,} points, {threads} threads")
            torch.set_num_threads(threads)
            rows.append(_measure(dim, k, num_points, rounds=3 if quick else 7))
            rows[-1]["threads"] = threads
    speedups = {name: value for name, value in rows[0].items() if name.startswith("speedup_vs")}
    return {"rows": rows, **speedups}


def _run_on_cuda(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    sizes = [(4, 1_000), *((dim, k) for dim in (4, 8, 16, 32) for k in (100, 2_048, 8_192))]
    sizes += [(4, 50_000)]
    rows = []
    for dim, k in [(3, 7)] if quick else sizes:
        num_points = 1_000 if quick else _CUDA_POINTS
        say(f"dim {dim}, {k:,} clusters, {num_points:,} points on the GPU")
        rows.append(_measure(dim, k, num_points, rounds=3, device="cuda"))
        rows[-1]["threads"] = torch.get_num_threads()
    speedups = {name: value for name, value in rows[0].items() if name.startswith("speedup_vs")}
    return {"rows": rows, **speedups}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    names = list(results["rows"][0]["search"])
    ours = next(iter(results["rows"][0]["sums"]))
    lines = [
        "Milliseconds of one search of all points and of one sum per cluster (median of rounds "
        "taken in turns; p10 to p90 in brackets).\n",
        f"| dim | clusters | points | threads | {' | '.join(f'search, {n}' for n in names)} "
        f"| sums, {ours} | sums, torch |",
        "|--:|--:|--:|--:|" + "--:|" * (len(names) + 2),
    ]
    for row in results["rows"]:
        cells = [cell(found) for found in (*row["search"].values(), *row["sums"].values())]
        sizes = f"{row['dim']} | {row['clusters']:,} | {row['points']:,} | {row['threads']}"
        lines.append(f"| {sizes} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _measure(dim: int, k: int, num_points: int, rounds: int, device: str = "cpu") -> dict[str, Any]:
    draw = torch.Generator(device).manual_seed(0)
    points = torch.randn(num_points, dim, generator=draw, device=device)
    centroids = torch.randn(k, dim, generator=draw, device=device)
    our_engine: EngineName = "triton" if device == "cuda" else "numba"
    searches: dict[str, Callable[[], object]] = {
        our_engine: partial(nearest, points[None], centroids[None], our_engine),
        "torch": partial(nearest, points[None], centroids[None], "torch"),
    }
    if device == "cuda":
        searches["torch.compile"] = partial(torch.compile(_plain_search), points, centroids)
    elif importlib.util.find_spec("faiss"):
        searches["faiss"] = partial(_search_by_faiss, points, centroids)
    calls, warmup = (2, 1) if device == "cuda" else (1, 2)
    search = time_in_turns(searches, rounds=rounds, calls=calls, warmup=warmup)
    labels = nearest(points[None], centroids[None])[0]
    weights = torch.rand(num_points, generator=draw, device=device).double()
    adders: dict[str, Callable[[], object]] = {}
    for engine in (our_engine, "torch"):
        with kernels_of(engine):
            adders[engine] = partial(prepare_sums(points, weights, k), labels)
    sums = time_in_turns(adders, rounds=rounds, calls=10 if device == "cuda" else 1)
    ours = search[our_engine].median_s
    return {
        "dim": dim,
        "clusters": k,
        "points": num_points,
        **{f"speedup_vs_{n}": t.median_s / ours for n, t in search.items() if n != our_engine},
        "sums_speedup_vs_torch": sums["torch"].median_s / sums[our_engine].median_s,
        "search": {name: timing.in_ms() for name, timing in search.items()},
        "sums": {name: timing.in_ms() for name, timing in sums.items()},
    }


def _plain_search(points: Tensor, centroids: Tensor) -> Tensor:
    return (centroids.square().sum(dim=1) / 2 - points @ centroids.t()).argmin(dim=1)


def _search_by_faiss(points: Tensor, centroids: Tensor) -> object:
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss.knn(points.numpy(), centroids.numpy(), 1)


BENCHMARK = Benchmark("kmeans", "outsize bench kmeans", ABOUT, run, table, run_on=run)
