"""The numba engine: nearest centroids on the CPU, in compiled code for points of a low dim."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from outsize.clustering.engine import CHUNK_POINTS, Searcher
from outsize.kernels.arrays import array
from outsize.kernels.compiled import compiled
from outsize.kernels.threads import num_parts, run_parts

MAX_DIM = 16
MISSING = "numba cannot be used here; leave the engine to auto"
_LEAST_PRODUCTS = 1 << 18  # per thread
# Upper bound of points × centroids × dim per call: a call cannot be interrupted, and this many
# multiplications take a second or less on one core.
_MAX_PRODUCTS = 1 << 32


def kernels() -> Any:
    """The compiled loops of k-means; `None` where numba cannot be used."""
    return compiled("clusters.clusters_numba")


def is_available() -> bool:
    """Whether numba can be used; the first call compiles, once per machine."""
    return kernels() is not None


def prepare(centroids: Float[Tensor, "k dim"]) -> Searcher:
    """Prepare float32 centroids of one column on the CPU."""
    code = kernels()
    num_clusters, dim = centroids.shape
    width = min(size for size in code.DIMS if size >= dim)
    num_missing = -num_clusters % code.TILE
    half_norms = pad(centroids.square().sum(dim=1) / 2, (0, num_missing), value=torch.inf)
    rows = pad(centroids, (0, width - dim, 0, num_missing)).flatten()
    num_products = len(half_norms) * width
    most = min(CHUNK_POINTS, max(code.LANES, _MAX_PRODUCTS // num_products))

    def search(points: Float[Tensor, "points dim"]) -> Int64[Tensor, " points"]:
        labels = torch.empty(len(points), dtype=torch.int64)
        parts = num_parts(len(points) * num_products, _LEAST_PRODUCTS)
        inputs = (array(points.contiguous()), width, array(rows), array(half_norms))
        run_parts(code.find_nearest, parts, *inputs, array(labels))
        return labels

    return Searcher(1 << (most.bit_length() - 1), search, any_size=True)
