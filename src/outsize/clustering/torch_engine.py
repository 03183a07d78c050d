"""The torch engine: nearest centroids on the CPU and on CUDA.

The nearest centroid minimizes |c|²/2 − x·c: one matrix product and one minimum per chunk, for all
columns together.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.clustering.engine import CHUNK_POINTS, Searcher
from outsize.kernels.full_precision import full_precision

# Scores per chunk, over all columns. On the CPU they should fit the cache: 2^24 scores take seven
# times as long.
_CPU_SCORES = 1 << 19
_CUDA_SCORES = 1 << 26


def prepare(centroids: Float[Tensor, "*columns k dim"]) -> Searcher:
    """Prepare float32 centroids on any device."""
    *columns, num_clusters, _ = centroids.shape
    num_scores = _CUDA_SCORES if centroids.is_cuda else _CPU_SCORES
    rows = max(1, num_scores // max(1, math.prod(columns) * num_clusters))
    rows = min(CHUNK_POINTS, 1 << (rows.bit_length() - 1))
    half_norms = centroids.square().sum(dim=-1, keepdim=True).mT / 2
    transposed = centroids.mT.contiguous()
    scores = torch.empty(*columns, rows, num_clusters, device=centroids.device)
    multiply = torch.baddbmm if columns else torch.addmm

    def search(
        points: Float[Tensor, "*columns points dim"],
    ) -> Int64[Tensor, "*columns points"]:
        with full_precision(points):
            multiply(half_norms, points, transposed, alpha=-1, out=scores)
        return scores.min(dim=-1).indices  # takes half the time of argmin on the CPU

    return Searcher(rows, search)
