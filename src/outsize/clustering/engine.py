"""What finds nearest centroids: an engine prepares centroids, then searches chunks of points.

An engine is always given chunks of one size, so that a point's result cannot depend on how many
others are searched with it.
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
        chunk_points: How many points `search` takes; a power of two up to `CHUNK_POINTS`.
        search: The index of the centroid nearest to each point of a chunk. Near ties are decided
            by rounding, alike for equal points.
    """

    chunk_points: int
    search: Callable[[Float[Tensor, "points dim"]], Int64[Tensor, " points"]]
