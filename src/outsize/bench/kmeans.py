"""k-means beside what a user would pick, and a table of ten million rows quantized in pieces.

Points are functions of their ids: 5,000 groups of very different size with noise around their
centres. So any sample can be made without the table, which never is in memory as a whole.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.bench.timing import time_in_turns
from outsize.clustering import CHUNK_POINTS, kmeans, nearest
from outsize.hashing import derive_seed, normal_at, uniform_at

ABOUT = "seconds and error of k-means beside faiss and scikit-learn, and quantizing 10 M rows"
_GROUPS = 5_000
_COLUMNS = 4
_POINTS_PER_CLUSTER = 256
_SIZES = ((4, 500), (4, 2048), (8, 2048), (16, 2048))
_QUICK_SIZES = ((4, 20), (8, 20))
_ITERATIONS = 20
_PIECE = CHUNK_POINTS


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Quantize a table in a process of its own, then time the engines in turns."""
    num_rows, num_clusters = (200_000, 64) if quick else (10_000_000, 2048)
    say(f"quantizing {num_rows:,} rows")
    results: dict[str, Any] = {"job": _job_alone(num_rows, num_clusters), "speed": []}
    for dim, num_clusters in _QUICK_SIZES if quick else _SIZES:
        say(f"dim {dim}, {num_clusters:,} clusters")
        results["speed"].append(_speed(dim, num_clusters, rounds=1 if quick else 3))
    return results


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    job = results["job"]
    extra = ", ".join(f"{job[key] / 1e6:,.0f} MB {text}" for key, text in _PEAKS if key in job)
    lines = [
        f"{job['rows']:,} rows of dim {job['dim']} as {job['columns']} codes of "
        f"{job['clusters']:,} on {job['device']}; peak of memory beyond the start: {extra}.\n",
        "| phase | seconds |",
        "|---|--:|",
        f"| fit, {job['iterations']} iterations on {job['fitted']:,} rows | {job['fit_s']:.1f} |",
        f"| nearest centroid of every row | {job['nearest_s']:.1f} |",
        f"| making the rows | {job['making_s']:.1f} |",
        f"\nMean squared error {job['fit_mse']:.4f} on the rows fitted, {job['rest_mse']:.4f} on "
        "the last piece.\n",
        f"One clustering of {_POINTS_PER_CLUSTER} points a cluster, {_ITERATIONS} iterations "
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


_PEAKS = (("process_bytes", "of the process"), ("cuda_bytes", "of the GPU"))


def rows_of(ids: Int64[Tensor, " n"], dim: int) -> Float[Tensor, "n dim"]:
    """The rows of these ids."""
    place = torch.arange(dim, device=ids.device)
    seed = derive_seed(0, "rows")
    groups = (uniform_at(ids + derive_seed(0, "groups")) ** 2 * _GROUPS).long()
    centres = normal_at(groups.unsqueeze(1) * dim + place + derive_seed(0, "centres"))
    return centres + 0.2 * normal_at(ids.unsqueeze(1) * dim + place + seed)


def quantize(num_rows: int, num_clusters: int) -> dict[str, Any]:
    """Fit a sample of a table and find the codes of all its rows, piece by piece."""
    import resource

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dim = 4 * _COLUMNS
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = dict.fromkeys(("making_s", "fit_s", "nearest_s"), 0.0)

    def timed(phase: str, call: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        value = call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds[phase] += time.perf_counter() - started
        return value

    def columns_of(ids: Int64[Tensor, " n"]) -> Float[Tensor, "columns n width"]:
        rows = rows_of(ids.to(device), dim)
        return rows.view(len(ids), _COLUMNS, -1).transpose(0, 1).contiguous()

    num_fitted = min(num_rows, _POINTS_PER_CLUSTER * num_clusters)
    generator = torch.Generator().manual_seed(0)
    sample = timed(
        "making_s",
        lambda: columns_of(torch.randperm(num_rows, generator=generator)[:num_fitted]),
    )
    fitted = timed("fit_s", partial(kmeans, sample, num_clusters))
    codes = torch.empty(_COLUMNS, num_rows, dtype=torch.int16)
    rest_mse = 0.0
    for start in range(0, num_rows, _PIECE):
        ids = torch.arange(start, min(start + _PIECE, num_rows))
        piece = timed("making_s", partial(columns_of, ids))
        found = timed("nearest_s", partial(nearest, piece, fitted.centroids))
        codes[:, start : start + len(ids)] = found
        rest_mse = _mse(piece, fitted.centroids, found)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = {
        "rows": num_rows,
        "dim": dim,
        "columns": _COLUMNS,
        "clusters": num_clusters,
        "fitted": num_fitted,
        "iterations": fitted.iterations,
        "device": device.type,
        **seconds,
        "fit_mse": fitted.mse.mean().item(),
        "rest_mse": rest_mse,
        "process_bytes": (peak - peak_before) * 1024,
    }
    if device.type == "cuda":
        result["cuda_bytes"] = torch.cuda.max_memory_allocated()
    return result


def _job_alone(num_rows: int, num_clusters: int) -> dict[str, Any]:
    """`quantize` in a process of its own, so that the peak of memory is its own."""
    code = (
        "import json; from outsize.bench.kmeans import quantize; "
        f"print(json.dumps(quantize({num_rows}, {num_clusters})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"quantizing failed: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


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
        fits["Outsize, GPU"] = ours("torch", "cuda")
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
    """Mean over columns and points of the squared distance to the centroid of that label."""
    found = torch.stack([rows[label] for rows, label in zip(centroids, labels, strict=True)])
    return (points - found).square().sum(dim=2).mean(dtype=torch.float64).item()
