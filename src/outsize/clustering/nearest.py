"""Exact nearest centroids of points, by exhaustive search."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.clustering import faiss_engine, numba_engine, torch_engine, triton_engine
from outsize.clustering.checks import check_points
from outsize.clustering.engine import CHUNK_POINTS, Engine, EngineName, column_batches
from outsize.errors import ConfigError
from outsize.interrupts import check_stop

__all__ = ["CHUNK_POINTS", "choose_engine", "nearest", "nearest_in_column"]

_ENGINES: dict[str, Engine] = {
    "torch": torch_engine.prepare,
    "numba": numba_engine.prepare,
    "faiss": faiss_engine.prepare,
    "triton": triton_engine.prepare,
}
_LOW_DIM: dict[str, Any] = {"numba": numba_engine, "faiss": faiss_engine}  # the fastest first


@torch.no_grad()
def nearest(
    points: Float[Tensor, "columns n dim"],
    centroids: Float[Tensor, "columns k dim"],
    engine: EngineName = "auto",
) -> Int64[Tensor, "columns n"]:
    """The index of the centroid nearest to each point, column by column.

    Among equal centroids, the lowest index is returned. Distances are compared in float32, relative
    to the mean of the centroids. If the squared distances to two centroids differ by less than a
    millionth of the point's squared distance to that mean, rounding decides.

    A large array may be searched in parts: a point's result does not depend on the other points of
    the call if the parts are cut at multiples of `CHUNK_POINTS`. Apart from the result, only one
    chunk is held in memory.

    Args:
        points: Finite points.
        centroids: Finite centroids on the same device.
        engine: "numba" (CPU only, dim up to 16), "faiss" (CPU only, dim up to 32), "torch", or
            "triton" (CUDA only, dim up to 32), or "auto" for the fastest that is available.
    """
    check_points(points, "points")
    check_points(centroids, "centroids")
    same = points.shape[0] == centroids.shape[0] and points.shape[2] == centroids.shape[2]
    if not same or centroids.shape[1] < 1:
        raise ConfigError(
            f"points of shape {tuple(points.shape)} need centroids of the same columns and dim, "
            f"at least one per column, but got {tuple(centroids.shape)}"
        )
    prepare = choose_engine(engine, points)
    labels = torch.empty(points.shape[:2], dtype=torch.int64, device=points.device)
    groups = map(column_batches, (points, centroids.float(), labels))
    for some, their_centroids, their_labels in zip(*groups, strict=True):
        nearest_in_column(some, their_centroids, prepare, out=their_labels)
    return labels


def choose_engine(engine: EngineName, points: Float[Tensor, "columns n dim"]) -> Engine:
    """The engine of a name, for points of this device and dim."""
    if engine not in ("auto", *_ENGINES):
        raise ConfigError(f"engine must be auto, torch, faiss, numba or triton, but got {engine!r}")
    on_cpu, dim = points.device.type == "cpu", points.shape[2]
    if engine == "auto":
        for name, module in _LOW_DIM.items():
            if on_cpu and dim <= module.MAX_DIM and module.is_available():
                return _ENGINES[name]
        if dim <= triton_engine.MAX_DIM and triton_engine.is_available(points):
            return triton_engine.prepare
        return torch_engine.prepare
    if engine in _LOW_DIM:
        module = _LOW_DIM[engine]
        if not on_cpu:
            raise ConfigError(f"{engine} works on the CPU, but the points are on {points.device}")
        if not module.is_available():
            raise ConfigError(module.MISSING)
        if dim > module.MAX_DIM:
            raise ConfigError(
                f"{engine} is used up to dim {module.MAX_DIM}, but the points have {dim}; "
                "leave the engine to auto"
            )
    if engine == "triton" and not triton_engine.is_available(points):
        raise ConfigError(
            f"triton works on CUDA, in version 3.3 or newer; the points are on {points.device}: "
            "leave the engine to auto"
        )
    if engine == "triton" and dim > triton_engine.MAX_DIM:
        raise ConfigError(
            f"triton is used up to dim {triton_engine.MAX_DIM}, but the points have {dim}; "
            "leave the engine to auto"
        )
    return _ENGINES[engine]


def nearest_in_column(
    points: Float[Tensor, "*columns n dim"],
    centroids: Float[Tensor, "*columns k dim"],
    engine: Engine,
    out: Int64[Tensor, "*columns n"] | None = None,
) -> Int64[Tensor, "*columns n"]:
    """`nearest` for one or several columns of points that are checked, and float32 centroids."""
    labels = torch.empty(points.shape[:-1], dtype=torch.int64, device=points.device)
    labels = labels if out is None else out
    # Scores are differences of squares: far from the origin they would lose all precision.
    centre = centroids.mean(dim=-2, keepdim=True, dtype=torch.float64).float()
    searcher = engine(centroids - centre)
    lowest = None if searcher.any_size else _lowest_equal(centroids)
    for start in range(0, points.shape[-2], searcher.chunk_points):
        check_stop()
        chunk = points[..., start : start + searcher.chunk_points, :].float() - centre
        num_points = chunk.shape[-2]
        if num_points < searcher.chunk_points and not searcher.any_size:
            num_missing = searcher.chunk_points - num_points
            padding = chunk.new_zeros(*chunk.shape[:-2], num_missing, chunk.shape[-1])
            chunk = torch.cat([chunk, padding], dim=-2)
        # A different memory layout may select a kernel that rounds differently.
        found = searcher.search(chunk.contiguous())[..., :num_points]
        labels[..., start : start + num_points] = (
            found if lowest is None else lowest.gather(-1, found)
        )
    return labels


def _lowest_equal(centroids: Float[Tensor, "*columns k dim"]) -> Int64[Tensor, "*columns k"]:
    """For each centroid the lowest index among equal ones, found without a synchronization."""
    indices = torch.arange(centroids.shape[-2], device=centroids.device)
    # Stable sorts by each coordinate in turn bring equal ones together, the lowest index first.
    order = indices.expand(centroids.shape[:-1])
    for coordinate in centroids.unbind(-1):
        order = order.gather(-1, coordinate.gather(-1, order).argsort(dim=-1, stable=True))
    ordered = torch.take_along_dim(centroids, order.unsqueeze(-1), dim=-2)
    is_equal = (ordered == ordered.roll(1, dims=-2)).all(dim=-1)
    first_equal = indices.masked_fill(is_equal, 0).cummax(dim=-1).values
    return order.gather(-1, first_equal).gather(-1, order.argsort(dim=-1))
