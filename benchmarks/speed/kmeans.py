"""k-means beside faiss and scikit-learn, on 5,000 noisy groups of very different sizes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from benchmarks.runner import run_command
from outsize.bench import Benchmark
from outsize.bench.timing import time_in_turns
from outsize.clustering import kmeans, nearest
from outsize.hashing import derive_seed, normal_at, uniform_at

ABOUT = "seconds and error of k-means beside faiss and scikit-learn"
_GROUPS = 5_000
_POINTS_PER_CLUSTER = 256
_SIZES = ((4, 500), (4, 2048), (8, 2048), (16, 2048))
_QUICK_SIZES = ((4, 20), (8, 20))
_ITERATIONS = 20


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Time all engines in turns."""
    speed = []
    for dim, num_clusters in _QUICK_SIZES if quick else _SIZES:
        say(f"dim {dim}, {num_clusters:,} clusters")
        speed.append(_speed(dim, num_clusters, rounds=1 if quick else 3))
    return {"speed": speed}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"One clustering of {_POINTS_PER_CLUSTER} points per cluster, {_ITERATIONS} iterations "
        "(median of rounds taken in turns; mean squared error in brackets).\n",
    ]
    names = list(results["speed"][0]["engines"])
    lines += [f"| dim | clusters | {' | '.join(names)} |", "|--:|--:|" + "--:|" * len(names)]
    for row in results["speed"]:
        cells = [
            f"{cell['median_s']:.2f} s ({cell['mse']:.4f})" for cell in row["engines"].values()
        ]
        lines.append(f"| {row['dim']} | {row['clusters']:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def rows_of(ids: Int64[Tensor, " n"], dim: int) -> Float[Tensor, "n dim"]:
    """The rows of these ids; a row depends on its id only."""
    place = torch.arange(dim, device=ids.device)
    seed = derive_seed(0, "rows")
    groups = (uniform_at(ids + derive_seed(0, "groups")) ** 2 * _GROUPS).long()
    centres = normal_at(groups.unsqueeze(1) * dim + place + derive_seed(0, "centres"))
    return centres + 0.2 * normal_at(ids.unsqueeze(1) * dim + place + seed)


def _speed(dim: int, num_clusters: int, rounds: int) -> dict[str, Any]:
    points = rows_of(torch.arange(_POINTS_PER_CLUSTER * num_clusters), dim).unsqueeze(0)
    centroids: dict[str, Tensor] = {}
    fits = _fits(points, num_clusters)

    def keep(name: str) -> None:
        centroids[name] = fits[name]()

    timings = time_in_turns(
        {name: partial(keep, name) for name in fits}, rounds=rounds, calls=1, warmup=0
    )
    engines = {}
    for name, timing in timings.items():
        found = centroids[name].cpu()
        engines[name] = {**asdict(timing), "mse": _mse(points, found, nearest(points, found))}
    return {"dim": dim, "clusters": num_clusters, "engines": engines}


def _fits(
    points: Float[Tensor, "1 n dim"], num_clusters: int
) -> dict[str, Callable[[], Float[Tensor, "1 k dim"]]]:
    """Name → a function that fits these points and returns centroids."""

    def ours(engine: Any, device: str) -> Callable[[], Tensor]:
        some = points.to(device)
        return lambda: kmeans(some, num_clusters, iterations=_ITERATIONS, engine=engine).centroids

    fits = {"Outsize, torch": ours("torch", "cpu")}
    if torch.cuda.is_available():
        fits["Outsize, torch on GPU"] = ours("torch", "cuda")
        fits["Outsize, GPU"] = ours("auto", "cuda")
    if importlib.util.find_spec("numba"):
        fits["Outsize, numba"] = ours("numba", "cpu")
    if importlib.util.find_spec("faiss"):
        fits["Outsize, faiss"] = ours("faiss", "cpu")
        fits["faiss.Kmeans"] = lambda: _faiss(points, num_clusters)
    if importlib.util.find_spec("sklearn"):
        fits["MiniBatchKMeans"] = lambda: _mini_batch(points, num_clusters)
    return fits


def _faiss(points: Float[Tensor, "1 n dim"], num_clusters: int) -> Float[Tensor, "1 k dim"]:
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    peer = faiss.Kmeans(points.shape[2], num_clusters, niter=_ITERATIONS, seed=1)
    peer.train(points[0].numpy())
    return torch.from_numpy(peer.centroids).unsqueeze(0)


def _mini_batch(points: Float[Tensor, "1 n dim"], num_clusters: int) -> Float[Tensor, "1 k dim"]:
    from sklearn.cluster import MiniBatchKMeans

    peer = MiniBatchKMeans(
        num_clusters, batch_size=4096, max_iter=_ITERATIONS, n_init=1, random_state=0
    )
    peer.fit(points[0].numpy())
    return torch.from_numpy(peer.cluster_centers_).float().unsqueeze(0)


def _mse(
    points: Float[Tensor, "columns n dim"],
    centroids: Float[Tensor, "columns k dim"],
    labels: Int64[Tensor, "columns n"],
) -> float:
    """Mean squared distance of points to the centroid of their label, over all columns."""
    found = torch.stack([rows[label] for rows, label in zip(centroids, labels, strict=True)])
    return (points - found).square().sum(dim=2).mean(dtype=torch.float64).item()


BENCHMARK = Benchmark("kmeans-fits", "python -m benchmarks.speed.kmeans", ABOUT, run, table)

if __name__ == "__main__":
    run_command(BENCHMARK)
