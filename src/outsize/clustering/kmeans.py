"""k-means for several columns of points, such as those of a product quantizer.

Each column is clustered on its own. Its result does not depend on the other columns: bit for bit on
the CPU, where columns are clustered one by one; up to rounding on CUDA, where they are batched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from outsize.clustering.checks import check_points, check_weights
from outsize.clustering.engine import EngineName, column_batches
from outsize.clustering.lloyd import lloyd
from outsize.clustering.nearest import choose_engine, nearest_in_column
from outsize.clustering.sampling import draw_distinct
from outsize.clustering.seeding import (
    INITS,
    InitName,
    Search,
    first_centroids,
    squared_distances,
)
from outsize.errors import ConfigError, DataError
from outsize.hashing import derive_seed


@dataclass(frozen=True)
class Clustering:
    """Centroids, and how well they fit the points they were fitted on.

    Attributes:
        centroids: In float32, on the device of the points.
        mse: Weighted mean of the squared distance (summed over dim) of a fitted point to its
            nearest centroid.
        num_empty: Number of clusters without a fitted point.
        iterations: Number of iterations, the maximum over columns.
        seconds: Elapsed time.
    """

    centroids: Float[Tensor, "columns k dim"]
    mse: Float[Tensor, " columns"]
    num_empty: Int64[Tensor, " columns"]
    iterations: int
    seconds: float


@torch.no_grad()
def kmeans(
    points: Float[Tensor, "columns n dim"],
    num_clusters: int,
    *,
    weights: Float[Tensor, " n"] | None = None,
    iterations: int = 50,
    init: InitName = "afk-mc2",
    seed: int = 0,
    engine: EngineName = "auto",
    max_points_per_cluster: int = 256,
    progress: bool = False,
    tolerance: float = 0.0,
) -> Clustering:
    """Find centroids that minimize the weighted squared distance of points to the nearest one.

    If there are fewer distinct points than clusters, each distinct point is a centroid and the
    other centroids are copies that count as empty. The same seed gives the same result on the CPU.
    On CUDA without Triton, sums may be rounded differently, unless
    `torch.use_deterministic_algorithms` is on.

    Args:
        points: Finite points of every column.
        num_clusters: Centroids per column (k).
        weights: One per point, shared by all columns; equal by default. Points of weight 0 are
            ignored.
        iterations: Maximum number of Lloyd iterations; a column stops when no assignment changes.
        init: How the initial centroids are chosen, see `outsize.clustering.seeding`.
        seed: Seed of the sample, the initial centroids and the moves of empty clusters. Every
            column draws the same numbers.
        engine: The engine that finds nearest centroids: "numba" (CPU only, dim up to 16), "faiss"
            (CPU only, dim up to 32), "triton" (CUDA only, dim up to 32), "torch", or "auto" for the
            fastest that is available.
        max_points_per_cluster: If there are more than k times this many points, a weighted sample
            is fitted. It is reweighted so that the error of any centroids on the sample is an
            unbiased estimate of their error on all points.
        progress: Show a progress bar on standard error.
        tolerance: A column also stops when an iteration lowers its error by no more than this share
            of it; 0 to go on until no assignment changes.
    """
    started = time.perf_counter()
    _check(points, num_clusters, iterations, init, max_points_per_cluster)
    if not 0 <= tolerance < 1:
        raise ConfigError(f"tolerance must be >= 0 and < 1, but got {tolerance}")
    prepare = choose_engine(engine, points)
    seed = derive_seed(seed, "k-means")
    chosen, masses = _sample(points, weights, num_clusters * max_points_per_cluster, seed)

    def search(some: Tensor, centroids: Tensor) -> Tensor:
        return nearest_in_column(some, centroids, prepare)

    groups = column_batches(points)
    fitted = []
    with _bar(len(groups) * iterations, progress) as advance_to:
        for done, group in enumerate(groups):
            rows = group if chosen is None else group.index_select(-2, chosen)
            rows = rows.float()
            first = []
            for column in rows.view(-1, *rows.shape[-2:]):
                generator = torch.Generator().manual_seed(derive_seed(seed, "column"))
                first.append(first_centroids(init, column, masses, num_clusters, generator, search))
            # Every column has drawn equally often, so the last generator can continue for all.
            centroids = torch.stack(first).view(*rows.shape[:-2], num_clusters, -1)
            advance = partial(advance_to, done * iterations)
            centroids, made = lloyd(
                rows, masses, centroids, iterations, generator, search, advance, tolerance
            )
            advance_to((done + 1) * iterations)
            fitted.append((centroids, *_quality(rows, masses, centroids, search), made))
    all_centroids, mse, num_empty, iterations_made = zip(*fitted, strict=True)
    return Clustering(
        torch.stack(all_centroids).view(points.shape[0], num_clusters, -1),
        torch.stack(mse).flatten(),
        torch.stack(num_empty).flatten(),
        max(iterations_made),
        time.perf_counter() - started,
    )


def _check(
    points: Tensor, num_clusters: int, iterations: int, init: str, max_points_per_cluster: int
) -> None:
    check_points(points, "points")
    columns, num_points, _ = points.shape
    if columns < 1 or num_points < 1:
        raise DataError(f"no points to cluster: their shape is {tuple(points.shape)}; give some")
    if num_clusters < 1:
        raise ConfigError(f"num_clusters must be >= 1, but got {num_clusters}")
    if iterations < 0:
        raise ConfigError(f"iterations must be >= 0, but got {iterations}")
    if init not in INITS:
        raise ConfigError(f"init must be one of {', '.join(INITS)}, but got {init!r}")
    if max_points_per_cluster < 1:
        raise ConfigError(f"max_points_per_cluster must be >= 1, but got {max_points_per_cluster}")


def _sample(
    points: Tensor, weights: Tensor | None, most: int, seed: int
) -> tuple[Int64[Tensor, " n"] | None, Float64[Tensor, " n"]]:
    """The indices of the points to fit (`None` for all), and their weights."""
    num_points = points.shape[1]
    chosen: Int64[Tensor, " n"] | None = None
    if weights is None:
        masses = torch.ones(num_points, dtype=torch.float64, device=points.device)
    else:
        check_weights(weights, num_points)
        masses = weights.to(points.device, torch.float64)
        if (masses == 0).any():
            chosen = masses.nonzero().squeeze(1)
            masses = masses[chosen]
    if len(masses) > most:
        generator = torch.Generator().manual_seed(derive_seed(seed, "sample"))
        drawn, masses = draw_distinct(masses, most, generator)
        chosen = drawn if chosen is None else chosen[drawn]
    return chosen, masses / masses.mean()


def _quality(
    points: Float[Tensor, "*columns n dim"],
    weights: Float64[Tensor, " n"],
    centroids: Float[Tensor, "*columns k dim"],
    search: Search,
) -> tuple[Float[Tensor, "*columns"], Int64[Tensor, "*columns"]]:
    """The mean squared error of centroids, and the number of empty clusters."""
    labels = search(points, centroids)
    found = torch.take_along_dim(centroids, labels.unsqueeze(-1), dim=-2)
    mse = (weights * squared_distances(points, found)).sum(dim=-1) / weights.sum()
    empty = torch.ones(centroids.shape[:-1], dtype=torch.bool, device=centroids.device)
    return mse.float(), empty.scatter_(-1, labels, False).sum(dim=-1)


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error, as a function of the steps done, which it adds up."""
    if not shown:
        yield lambda *done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("k-means", total=total)
        yield lambda *done: bar.update(task, completed=sum(done))
