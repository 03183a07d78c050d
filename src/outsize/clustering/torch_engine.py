"""Nearest centroids in torch, on the CPU and on CUDA.

The nearest centroid has the least |c|²/2 − x·c: one matrix product and one minimum over a chunk
of all columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.clustering.engine import CHUNK_POINTS, Searcher

# Scores of a chunk of all columns. On the CPU they should stay in the cache: 2^24 take seven times
# as long.
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
        with _full_precision():  # autocast leaves products into a given tensor alone
            multiply(half_norms, points, transposed, alpha=-1, out=scores)
        return scores.min(dim=-1).indices  # half the time of argmin on the CPU

    return Searcher(rows, search)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Keep a lowered precision of matrix products (TF32, bfloat16) away."""
    before = torch.get_float32_matmul_precision()
    if before == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
