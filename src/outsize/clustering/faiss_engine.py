"""Nearest centroids by faiss, on the CPU."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from outsize.clustering.engine import CHUNK_POINTS, Searcher
from outsize.interrupts import check_stop

# faiss has a fused kernel up to this dim, and uses it from so many numbers a call. With it, it is
# 13 times as fast as torch at dim 4. Without it, it is slower, and a point's result depends on its
# place and on the number of threads.
MAX_DIM = 32
_MIN_NUMBERS = 1 << 17
# Numbers that points and centroids of a call are multiplied by each other, at most: no call can be
# stopped, and this takes a second or two on one core.
_MAX_PRODUCTS = 1 << 31


def is_available() -> bool:
    """Whether faiss can be imported."""
    return importlib.util.find_spec("faiss") is not None


def prepare(centroids: Float[Tensor, "k dim"]) -> Searcher:
    """Prepare float32 centroids of one column on the CPU; very many are searched block by block."""
    import faiss

    rows = -(-_MIN_NUMBERS // centroids.shape[1])
    rows = min(CHUNK_POINTS, 1 << (rows - 1).bit_length())
    num_together = max(1, _MAX_PRODUCTS // (rows * centroids.shape[1]))
    blocks = [block.contiguous().numpy() for block in centroids.split(num_together)]

    def search_block(points: NDArray[Any], block: NDArray[Any]) -> tuple[Tensor, Tensor]:
        # faiss has an OpenMP runtime of its own, which knows nothing of torch's limit.
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
