"""The faiss engine: nearest centroids on the CPU."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from outsize.clustering.engine import CHUNK_POINTS, Searcher
from outsize.interrupts import check_stop

# faiss has a fused kernel up to this dim, and uses it from this many numbers per call. With it,
# faiss is 13 times as fast as torch at dim 4. Without it, faiss is slower, and a point's result
# depends on its position and on the number of threads.
MAX_DIM = 32
MISSING = "faiss is not installed: pip install 'outsize[faiss]'"
_MIN_NUMBERS = 1 << 17
# Upper bound of points × centroids × dim per call: a call cannot be interrupted, and this many
# multiplications take a second or two on one core.
_MAX_PRODUCTS = 1 << 31


def is_available() -> bool:
    """Whether faiss can be imported."""
    return importlib.util.find_spec("faiss") is not None


def prepare(centroids: Float[Tensor, "k dim"]) -> Searcher:
    """Prepare float32 centroids of one column on the CPU; many centroids are searched in blocks."""
    import faiss

    rows = -(-_MIN_NUMBERS // centroids.shape[1])
    rows = min(CHUNK_POINTS, 1 << (rows - 1).bit_length())
    num_together = max(1, _MAX_PRODUCTS // (rows * centroids.shape[1]))
    blocks = [block.contiguous().numpy() for block in centroids.split(num_together)]

    def search_block(points: NDArray[Any], block: NDArray[Any]) -> tuple[Tensor, Tensor]:
        # faiss has its own OpenMP runtime, which ignores torch's limit on threads.
        threads_before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(torch.get_num_threads())
        try:
            squares, found = faiss.knn(points, block, 1)
        finally:
            faiss.omp_set_num_threads(threads_before)
        return torch.from_numpy(squares)[:, 0], torch.from_numpy(found)[:, 0]

    def search(points: Float[Tensor, "points dim"]) -> Int64[Tensor, " points"]:
        array = points.contiguous().numpy()
        least, nearest = search_block(array, blocks[0])
        for number, block in enumerate(blocks[1:], start=1):
            check_stop()
            squares, found = search_block(array, block)
            is_nearer = squares < least
            nearest = torch.where(is_nearer, found + number * num_together, nearest)
            least = torch.where(is_nearer, squares, least)
        return nearest

    return Searcher(rows, search)
