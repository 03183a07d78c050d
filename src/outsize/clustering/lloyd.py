"""Lloyd's algorithm: assign each point to its nearest centroid, move centroids to the means."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Generator, Tensor

from outsize.clustering.sampling import draw_by_mass
from outsize.clustering.seeding import Search, squared_distances
from outsize.clustering.sums import prepare_sums
from outsize.interrupts import check_stop


def lloyd(
    points: Float[Tensor, "*columns n dim"],
    weights: Float64[Tensor, " n"],
    centroids: Float[Tensor, "*columns k dim"],
    iterations: int,
    generator: Generator,
    search: Search,
    advance: Callable[[int], None],
    tolerance: float = 0.0,
) -> tuple[Float[Tensor, "*columns k dim"], int]:
    """Iterate until no assignment changes, at most `iterations` times.

    With a tolerance, a column also stops when an iteration lowers its error by no more than that
    share of it.

    An empty cluster is moved to a point drawn in proportion to its weighted squared error, which
    tends to split a cluster of large error. If the error is 0, nothing is moved.

    A column whose assignment does not change keeps its centroids while others continue. Each column
    draws from a copy of the generator. The device is synchronized once per iteration, and for empty
    clusters.

    Returns:
        The centroids and the number of iterations, the maximum over columns.
    """
    shape = centroids.shape[-2:]
    sums = prepare_sums(points, weights, shape[0])
    all_points = points.view(-1, *points.shape[-2:])
    generators = [generator.clone_state() for _ in all_points]
    labels = torch.full(points.shape[:-1], -1, device=points.device)
    moving = torch.ones(points.shape[:-2], dtype=torch.bool, device=points.device)
    previous = torch.full(moving.shape, math.inf, dtype=torch.float64, device=points.device)
    for iteration in range(iterations):
        found = search(points, centroids)
        moving = moving & (found != labels).any(dim=-1)
        labels = found
        check_stop()  # `search` checks before each chunk, not after the last one
        mass, means = sums(labels)
        empty = mass == 0
        means /= mass.masked_fill(empty, 1).unsqueeze(-1)
        unchanged = empty | ~moving.unsqueeze(-1)
        centroids = torch.where(unchanged.unsqueeze(-1), centroids, means.float())
        if tolerance:
            error = _error(points, weights, mass, means)
            moving = moving & ~(error >= (1 - tolerance) * previous)
            previous = error
        is_moving, num_empty = torch.stack([moving, empty.sum(dim=-1)]).view(2, -1).tolist()
        if not any(is_moving):
            return centroids, iteration
        for column, some in enumerate(all_points):
            if is_moving[column] and num_empty[column]:
                _move_empty(
                    some,
                    weights,
                    labels.view(-1, len(weights))[column],
                    centroids.view(-1, *shape)[column],
                    empty.view(-1, shape[0])[column],
                    generators[column],
                )
        advance(iteration + 1)
    return centroids, iterations


def _move_empty(
    points: Float[Tensor, "n dim"],
    weights: Float64[Tensor, " n"],
    labels: Int64[Tensor, " n"],
    centroids: Float[Tensor, "k dim"],
    empty: Bool[Tensor, " k"],
    generator: Generator,
) -> None:
    """Move one column's empty clusters, in place, to points drawn in proportion to their error."""
    error = weights * squared_distances(points, centroids[labels])
    if error.sum() > 0:
        centroids[empty] = points[draw_by_mass(error, int(empty.sum()), generator)]


def _error(
    points: Float[Tensor, "*columns n dim"],
    weights: Float64[Tensor, " n"],
    mass: Tensor,
    means: Tensor,
) -> Float64[Tensor, "*columns"]:
    """The weighted squared distance of points to the means of their clusters."""
    total = points.square().sum(dim=-1).double() @ weights
    explained = mass.double() * means.double().square().sum(dim=-1)
    return total - explained.sum(dim=-1)
