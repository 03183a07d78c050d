"""Nearest centroids by faiss, on the CPU."""

from __future__ import annotations

import importlib.util

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.clustering.engine import CHUNK_POINTS, Searcher

# faiss has a fused kernel up to this dim, and uses it from so many numbers a call. With it, it is
# 13 times as fast as torch at dim 4. Without it, it is slower, and a point's result depends on its
# place and on the number of threads.
MAX_DIM = 32
_MIN_NUMBERS = 1 << 17


def is_available() -> bool:
    """Whether faiss can be imported."""
    return importlib.util.find_spec("faiss") is not None


def prepare(centroids: Float[Tensor, "k dim"]) -> Searcher:
    """Prepare float32 centroids of one column on the CPU."""
    import faiss

    rows = -(-_MIN_NUMBERS // centroids.shape[1])
    rows = min(CHUNK_POINTS, 1 << (rows - 1).bit_length())
    array = centroids.contiguous().numpy()

    def search(points: Float[Tensor, "points dim"]) -> Int64[Tensor, " points"]:
        # faiss has an OpenMP runtime of its own, which knows nothing of torch's limit.
        threads_before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(torch.get_num_threads())
        try:
            _, found = faiss.knn(points.contiguous().numpy(), array, 1)
        finally:
            faiss.omp_set_num_threads(threads_before)
        return torch.from_numpy(found)[:, 0]

    return Searcher(rows, search)
