"""Sums of weights and of weighted points per cluster, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from outsize.kernels.arrays import array, is_plain_float
from outsize.kernels.available import uses_triton
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.threads import num_parts, run_parts

_LEAST_NUMBERS = 1 << 16  # below, torch is as fast
_LEAST_DIM = 32  # below, whether a cluster is a thread's own costs more than to add a point to it
Sums = tuple[Float64[Tensor, "*columns k"], Float64[Tensor, "*columns k dim"]]


def prepare_sums(
    points: Float[Tensor, "*columns n dim"], weights: Float64[Tensor, " n"], num_clusters: int
) -> Callable[[Int64[Tensor, "*columns n"]], Sums]:
    """A function from labels to each cluster's weight and sum of weighted points."""
    *columns, num_points, dim = points.shape
    if not columns and is_plain_float(points) and is_worthwhile(num_points * dim, _LEAST_NUMBERS):
        code = compiled("clusters.clusters_numba")
        if code is not None:
            return _compiled_sums(code, points, weights, num_clusters)
    if uses_triton(points) and num_points:
        return _sums_by_triton(points, weights, num_clusters)
    num_sums = math.prod(columns) * num_clusters
    masses = weights.expand(points.shape[:-1])
    moments = points.double() * weights.unsqueeze(1)
    # One contiguous row for the weights and one per dimension, for all columns.
    rows = torch.stack([masses, *moments.unbind(-1)]).view(1 + dim, -1)
    offsets = torch.arange(0, num_sums, num_clusters, device=points.device).view(*columns, 1)
    add = add_by_index if points.is_cuda else add_by_count

    def sums(labels: Int64[Tensor, "*columns n"]) -> Sums:
        added = add(rows, (labels + offsets).flatten(), num_sums)
        mass, *parts = added.view(1 + dim, *columns, num_clusters)
        return mass, torch.stack(parts, dim=-1)

    return sums


def _sums_by_triton(
    points: Float[Tensor, "*columns n dim"], weights: Float64[Tensor, " n"], num_clusters: int
) -> Callable[[Int64[Tensor, "*columns n"]], Sums]:
    """`prepare_sums` by one program per cluster; the same labels give the same sums."""
    from outsize.kernels.clusters.clusters_triton import sums_by_triton

    *columns, num_points, dim = points.shape
    together = points.float().contiguous().view(-1, num_points, dim)
    weights = weights.contiguous()

    def sums(labels: Int64[Tensor, "*columns n"]) -> Sums:
        masses, moments = sums_by_triton(
            together, weights, labels.view(-1, num_points), num_clusters
        )
        return masses.view(*columns, num_clusters), moments.view(*columns, num_clusters, dim)

    return sums


def _compiled_sums(
    code: Any, points: Float[Tensor, "n dim"], weights: Float64[Tensor, " n"], num_clusters: int
) -> Callable[[Int64[Tensor, " n"]], Sums]:
    """`prepare_sums` in one pass over the points, with the same rounding."""
    parts = num_parts(points.numel(), _LEAST_NUMBERS) if points.shape[1] >= _LEAST_DIM else 1
    inputs = array(points), array(weights.contiguous())

    def sums(labels: Int64[Tensor, " n"]) -> Sums:
        masses = weights.new_zeros(num_clusters)
        moments = weights.new_zeros(num_clusters, points.shape[1])
        run_parts(
            code.add_to_clusters,
            parts,
            *inputs,
            array(labels.contiguous()),
            array(masses),
            array(moments),
        )
        return masses, moments

    return sums


def add_by_count(
    rows: Float64[Tensor, "rows n"], labels: Int64[Tensor, " n"], num_sums: int
) -> Float64[Tensor, "rows sums"]:
    """Sum each row by label; takes a quarter of the time of `add_by_index` on the CPU."""
    return torch.stack([torch.bincount(labels, row, minlength=num_sums) for row in rows])


def add_by_index(
    rows: Float64[Tensor, "rows n"], labels: Int64[Tensor, " n"], num_sums: int
) -> Float64[Tensor, "rows sums"]:
    """Sum each row by label without synchronizing CUDA; deterministic if torch is set to be."""
    return rows.new_zeros(len(rows), num_sums).index_add_(1, labels, rows)
