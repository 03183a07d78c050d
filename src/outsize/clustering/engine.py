"""The interface of nearest-centroid engines: prepare the centroids, then search chunks of points.

All chunks passed to an engine have the same size, so a point's result does not depend on how many
other points are searched with it; unless the engine says that the size makes no difference.

In this package `*columns` is an optional leading axis: a tensor holds one column, or several that
are processed as a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float, Int64
from torch import Tensor

EngineName = Literal["auto", "torch", "faiss", "numba", "triton"]

CHUNK_POINTS = 1 << 17  # every engine's chunk is a power of two up to this


@dataclass(frozen=True)
class Searcher:
    """Centroids prepared for search.

    Attributes:
        chunk_points: Points per column in a chunk; a power of two up to `CHUNK_POINTS`.
        search: Returns the index of the centroid nearest to each point of a chunk. Rounding
            decides near ties, in the same way for equal points.
        any_size: Whether a chunk may have fewer points, and the lowest of equal centroids is found.
    """

    chunk_points: int
    search: Callable[[Float[Tensor, "*columns points dim"]], Int64[Tensor, "*columns points"]]
    any_size: bool = False


Engine = Callable[[Float[Tensor, "*columns k dim"]], Searcher]


def column_batches(columns: Tensor) -> list[Tensor]:
    """Batches of columns to process at once: all columns on CUDA, one by one elsewhere.

    One column would leave a GPU idle. On the CPU one column keeps the cores busy and fits the
    caches better, and each column can stop when it has converged.
    """
    return [columns] if columns.is_cuda else list(columns.unbind())
