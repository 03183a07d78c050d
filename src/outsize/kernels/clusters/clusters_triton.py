"""The two loops of k-means on CUDA, in Triton: nearest centroids, and sums per cluster.

The search compares each point with every centroid in registers, so that no matrix of scores is
written. The sums of a cluster are added by one program in the order of its points, which are sorted
by label: without atomic additions, the same labels give the same sums.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from outsize.kernels.launches_triton import ceil_div, launch, power_of_two
from outsize.kernels.launching import num_processors, on_device

MAX_DIM = 32  # of points in registers; above, a product with tensor cores is faster
TOGETHER = 4  # centroids that are compared in one turn of the loop
_POINTS = {4: 1024, 8: 1024, 16: 512, 32: 256}  # points per program, up to a dim
_LEAST_POINTS = 128
_PROGRAMS = 2  # per processor, if there are points enough
_MEMBERS = 256


def nearest_by_triton(
    points: Float32[Tensor, "columns n dim"],
    centroids: Float32[Tensor, "columns k dim"],
    half_norms: Float32[Tensor, "columns k"],
) -> Int64[Tensor, "columns n"]:
    """The index of the least |c|²/2 − x·c for each point, the lowest of equals.

    Args:
        points: Contiguous points of a dim up to `MAX_DIM`.
        centroids: Contiguous centroids, a multiple of `TOGETHER`.
        half_norms: |c|²/2; infinity for centroids that are never found.
    """
    columns, num_points, dim = points.shape
    labels = torch.empty(columns, num_points, dtype=torch.int64, device=points.device)
    if not labels.numel():
        return labels
    tile = next(size for bound, size in _POINTS.items() if dim <= bound)
    wanted = _PROGRAMS * num_processors(points.device)
    while tile > _LEAST_POINTS and columns * ceil_div(num_points, tile) < wanted:
        tile //= 2
    with on_device(points):
        launch(
            nearest_kernel, (ceil_div(num_points, tile), columns),
            (points, centroids, half_norms, labels, num_points, centroids.shape[1]),
            DIM=dim, POINTS=tile, TOGETHER=TOGETHER, num_warps=4,
        )  # fmt: skip
    return labels


def sums_by_triton(
    points: Float32[Tensor, "columns n dim"],
    weights: Float64[Tensor, " n"],
    labels: Int64[Tensor, "columns n"],
    num_clusters: int,
) -> tuple[Float64[Tensor, "columns k"], Float64[Tensor, "columns k dim"]]:
    """Each cluster's weight and sum of weighted points."""
    columns, num_points, dim = points.shape
    first = torch.arange(columns, device=points.device, dtype=torch.int32) * num_clusters
    numbers = labels.int() + first.unsqueeze(1)
    ordered, order = numbers.flatten().sort(stable=True)
    wanted = torch.arange(columns * num_clusters + 1, device=points.device, dtype=torch.int32)
    starts = torch.searchsorted(ordered, wanted)
    masses = weights.new_empty(columns, num_clusters)
    sums = weights.new_empty(columns, num_clusters, dim)
    with on_device(points):
        launch(
            add_to_clusters_kernel, (columns * num_clusters,),
            (points, weights, order, starts, masses, sums, num_points),
            DIM=dim, WIDTH=power_of_two(dim),
            MEMBERS=max(16, min(_MEMBERS, 4096 // power_of_two(dim))), num_warps=4,
        )  # fmt: skip
    return masses, sums


@triton.jit(do_not_specialize=["num_points", "num_clusters"])
@no_type_check
def nearest_kernel(
    points,
    centroids,
    half_norms,
    labels,
    num_points,
    num_clusters,
    DIM: tl.constexpr,
    POINTS: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """Find the nearest centroids of some points of a column.

    A point's numbers stay in registers; those of a centroid are the same for all points.
    """
    column = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * POINTS + tl.arange(0, POINTS)
    inside = place < num_points
    start = points + column * num_points * DIM + place.to(tl.int64) * DIM
    point = ()
    for d in tl.static_range(DIM):
        point = point + (tl.load(start + d, mask=inside, other=0.0),)  # noqa: RUF005
    best = tl.full((POINTS,), float("inf"), tl.float32)
    found = tl.zeros((POINTS,), dtype=tl.int32)
    first_norm = half_norms + column * num_clusters
    first_centroid = centroids + column * num_clusters * DIM
    for c in range(0, num_clusters, TOGETHER):
        for i in tl.static_range(TOGETHER):
            score = tl.full((POINTS,), 0.0, tl.float32) + tl.load(first_norm + c + i)
            for d in tl.static_range(DIM):
                score -= point[d] * tl.load(first_centroid + (c + i) * DIM + d)
            is_less = score < best
            best = tl.where(is_less, score, best)
            found = tl.where(is_less, c + i, found)
    tl.store(labels + column * num_points + place, found.to(tl.int64), mask=inside)


@triton.jit(do_not_specialize=["num_points"])
@no_type_check
def add_to_clusters_kernel(
    points,
    weights,
    order,
    starts,
    masses,
    sums,
    num_points,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    MEMBERS: tl.constexpr,
):
    """Add up the points of one cluster, whose places are neighbours in `order`."""
    cluster = tl.program_id(0).to(tl.int64)
    first, end = tl.load(starts + cluster), tl.load(starts + cluster + 1)
    depth = tl.arange(0, WIDTH)
    total = tl.zeros((MEMBERS, WIDTH), dtype=tl.float64)
    mass = tl.zeros((MEMBERS,), dtype=tl.float64)
    for start in range(first, end, MEMBERS):
        member = start + tl.arange(0, MEMBERS)
        inside = member < end
        which = tl.load(order + member, mask=inside, other=0)
        weight = tl.load(weights + which % num_points, mask=inside, other=0.0)
        numbers = tl.load(
            points + which[:, None] * DIM + depth[None, :],
            mask=inside[:, None] & (depth < DIM)[None, :],
            other=0.0,
        )
        mass += weight
        total += numbers.to(tl.float64) * weight[:, None]
    tl.store(masses + cluster, tl.sum(mass, axis=0))
    tl.store(sums + cluster * DIM + depth, tl.sum(total, axis=0), mask=depth < DIM)
