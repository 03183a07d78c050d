"""Initial centroids of k-means: three ways to choose them among the points.

- "random": distinct points, with probability increasing with weight.
- "k-means++" (Arthur and Vassilvitskii 2007): each centroid is drawn in proportion to w·D², D the
  distance to the nearest centroid chosen so far. One pass over all points per centroid.
- "afk-mc2" (Bachem et al. 2016): approximates that distribution by a Markov chain per centroid.
  Candidates come from q(x) ∝ w·(D₁²/Σ w·D₁² + 1/Σ w) / 2, D₁ the distance to the first centroid,
  so there is one pass over all points; the rest looks at candidates only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy
import torch
from jaxtyping import Float, Float64, Int64
from torch import Generator, Tensor

from outsize.clustering.sampling import draw_by_mass, draw_distinct
from outsize.interrupts import check_stop
from outsize.kernels.available import uses_triton

InitName = Literal["afk-mc2", "k-means++", "random"]
Points = Float[Tensor, "n dim"]
Search = Callable[
    [Float[Tensor, "*columns n dim"], Float[Tensor, "*columns k dim"]], Int64[Tensor, "*columns n"]
]

CHAIN_LENGTH = 64
_CHUNK = 1 << 18  # points that are compared with each other at once
_TRITON_DIM = 32  # above, the chains run on the CPU
_BLOCK = 64  # centroids whose candidates are compared with the earlier centroids at once


def first_centroids(
    init: InitName,
    points: Points,
    weights: Float64[Tensor, " n"],
    num_clusters: int,
    generator: Generator,
    search: Search,
) -> Float[Tensor, "k dim"]:
    """Choose centroids among the points of one column.

    If there are no more distinct points than clusters, each of them is a centroid and the remaining
    centroids are copies of the first. The number of random draws does not depend on the points.
    """
    seeds = points[:0]
    if len(points) > num_clusters:
        seeds = INITS[init](points, weights, num_clusters, generator, search)
        if len(distinct_rows(seeds)) == num_clusters:
            return seeds
    distinct = points[:0]
    for piece in points.split(_CHUNK):
        distinct = distinct_rows(torch.cat([distinct, piece]))
        if len(distinct) > num_clusters:
            return seeds  # copies are empty clusters, which the first iteration moves
    copies = distinct[:1].expand(num_clusters - len(distinct), -1)
    return torch.cat([distinct, copies])


def distinct_rows(points: Points) -> Float[Tensor, "distinct dim"]:
    """Each distinct point once, in lexicographic order, as `torch.unique` gives them.

    `torch.unique` takes several times as long on the CPU, in one call that cannot be interrupted.
    """
    order = torch.arange(len(points), device=points.device)
    for coordinate in reversed(points.unbind(-1)):
        check_stop()
        order = order[coordinate[order].argsort(stable=True)]
    ordered = points[order]
    is_new = torch.ones(len(points), dtype=torch.bool, device=points.device)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(dim=-1)
    return ordered[is_new]


def squared_distances(
    points: Float[Tensor, "*columns n dim"], others: Float[Tensor, "*columns #n dim"]
) -> Float64[Tensor, "*columns n"]:
    """|x − y|² of each pair, or of all points to one."""
    return (points - others).square_().sum(dim=-1, dtype=torch.float64)


def random_points(
    points: Points,
    weights: Float64[Tensor, " n"],
    num_clusters: int,
    generator: Generator,
    search: Search,
) -> Float[Tensor, "k dim"]:
    """Draw distinct points by priority sampling."""
    return points[draw_distinct(weights, num_clusters, generator)[0]]


def k_means_plus_plus(
    points: Points,
    weights: Float64[Tensor, " n"],
    num_clusters: int,
    generator: Generator,
    search: Search,
) -> Float[Tensor, "k dim"]:
    """Draw each centroid in proportion to w·D²."""
    chosen = [draw_by_mass(weights, 1, generator)]
    squares = squared_distances(points, points[chosen[0]])
    for _ in range(1, num_clusters):
        check_stop()
        chosen.append(draw_by_mass(weights * squares, 1, generator))
        squares = torch.minimum(squares, squared_distances(points, points[chosen[-1]]))
    return points[torch.cat(chosen)]


def afk_mc2(
    points: Points,
    weights: Float64[Tensor, " n"],
    num_clusters: int,
    generator: Generator,
    search: Search,
) -> Float[Tensor, "k dim"]:
    """Approximate draws in proportion to w·D² by Markov chains of `CHAIN_LENGTH` candidates.

    The candidates of a block of centroids are compared with all earlier centroids in one search.
    Within the block, their distances are updated after each centroid. The result is the same as
    when chains run one by one.
    """
    first = points[draw_by_mass(weights, 1, generator)]
    squares = squared_distances(points, first)
    total = (weights * squares).sum().clamp(min=torch.finfo(torch.float64).tiny)
    density = (squares / total + 1 / weights.sum()) / 2  # proposal density per unit of weight
    num_candidates = (num_clusters - 1) * CHAIN_LENGTH
    candidates = draw_by_mass(weights * density, num_candidates, generator)
    limits = torch.rand(num_clusters - 1, CHAIN_LENGTH, dtype=torch.float64, generator=generator)
    chosen = first
    for block, block_limits in zip(
        candidates.split(_BLOCK * CHAIN_LENGTH), limits.split(_BLOCK), strict=True
    ):
        check_stop()
        rows = points[block]
        squares = squared_distances(rows, chosen[search(rows, chosen)])
        chosen = torch.cat([chosen, _run_chains(rows, squares, density[block], block_limits)])
    return chosen


def _run_chains(
    rows: Points,
    squares: Float64[Tensor, " n"],
    density: Float64[Tensor, " n"],
    limits: Float64[Tensor, "chains length"],
) -> Float[Tensor, "chains dim"]:
    """Run the chains one by one; each takes the points chosen before it into account."""
    if rows.shape[1] <= _TRITON_DIM and uses_triton(rows):
        from outsize.kernels.clusters.chains_triton import chains_by_triton

        return chains_by_triton(rows, squares, density, limits.to(rows.device))
    # numpy takes a fraction of the time of torch for a few numbers at a time.
    numbers, least = rows.cpu().numpy(), squares.cpu().numpy().copy()
    densities = density.cpu().numpy()
    picked = numpy.empty((len(limits), rows.shape[1]), dtype=numbers.dtype)
    for chain, limits_of_chain in enumerate(limits.tolist()):
        first, end = chain * CHAIN_LENGTH, (chain + 1) * CHAIN_LENGTH
        ratios = (least[first:end] / densities[first:end]).tolist()
        state = 0
        for step in range(1, CHAIN_LENGTH):
            if ratios[step] > limits_of_chain[step] * ratios[state]:
                state = step
        picked[chain] = numbers[first + state]
        differences = numbers[end:] - picked[chain]
        found = numpy.square(differences, out=differences).sum(axis=1, dtype=numpy.float64)
        numpy.minimum(least[end:], found, out=least[end:])
    return torch.from_numpy(picked).to(rows.device)


INITS: dict[str, Callable[..., Float[Tensor, "k dim"]]] = {
    "afk-mc2": afk_mc2,
    "k-means++": k_means_plus_plus,
    "random": random_points,
}
