"""The Triton engine: nearest centroids on CUDA, in one kernel that writes no matrix of scores."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from outsize.clustering.engine import CHUNK_POINTS, Searcher
from outsize.kernels.available import uses_triton

MAX_DIM = 32
MISSING = "triton cannot be used here; leave the engine to auto"


def is_available(points: Tensor) -> bool:
    """Whether Triton kernels work on these points."""
    return uses_triton(points)


def prepare(centroids: Float[Tensor, "*columns k dim"]) -> Searcher:
    """Prepare float32 centroids of one or several columns on CUDA."""
    from outsize.kernels.clusters.clusters_triton import TOGETHER, nearest_by_triton

    together = centroids if centroids.dim() == 3 else centroids.unsqueeze(0)
    num_missing = -together.shape[1] % TOGETHER
    half_norms = together.square().sum(dim=2) / 2
    if num_missing:
        half_norms = pad(half_norms, (0, num_missing), value=torch.inf)
        together = pad(together, (0, 0, 0, num_missing))
    together = together.contiguous()

    def search(
        points: Float[Tensor, "*columns points dim"],
    ) -> Int64[Tensor, "*columns points"]:
        some = points.contiguous().view(len(together), *points.shape[-2:])
        return nearest_by_triton(some, together, half_norms).view(points.shape[:-1])

    return Searcher(CHUNK_POINTS, search, any_size=True)
