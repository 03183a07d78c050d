"""What finds nearest centroids: an engine prepares centroids, then searches chunks of points.

An engine is always given chunks of one size, so that a point's result cannot depend on how many
others are searched with it.

In this package `*columns` is a leading axis that may be missing: tensors are one column, or several
to be worked on together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float, Int64
from torch import Tensor

EngineName = Literal["auto", "torch", "faiss"]

CHUNK_POINTS = 1 << 17  # every engine's chunk is a power of two up to this


@dataclass(frozen=True)
class Searcher:
    """Centroids prepared for search.

    Attributes:
        chunk_points: How many points a column `search` takes; a power of two up to `CHUNK_POINTS`.
        search: The index of the centroid nearest to each point of a chunk. Near ties are decided
            by rounding, alike for equal points.
    """

    chunk_points: int
    search: Callable[[Float[Tensor, "*columns points dim"]], Int64[Tensor, "*columns points"]]


Engine = Callable[[Float[Tensor, "*columns k dim"]], Searcher]


def taken_together(columns: Tensor) -> list[Tensor]:
    """The columns to work on at once: all on CUDA, which one would leave idle, else one by one.

    On the CPU a column fills the caches and the cores by itself, and stops when it is done.
    """
    return [columns] if columns.is_cuda else list(columns.unbind())
