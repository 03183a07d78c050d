"""Mean, sum or maximum of the vectors of each node's neighbours.

The edges are grouped by target, as in a `Neighborhood` or in a slice of a graph. `F.embedding_bag`
is the reference for sums and means. For the maximum each number is that of one edge, the first of
equals, and the gradient goes to its source.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

Aggregation = Literal["mean", "sum", "max"]


def aggregate(
    vectors: Float[Tensor, "n dim"],
    starts: Int64[Tensor, " targets_and_one"],
    sources: Int64[Tensor, " edges"],
    how: Aggregation = "mean",
) -> Float[Tensor, "targets dim"]:
    """Aggregate the vectors of each target's sources; zeros for a target without edges.

    Args:
        vectors: The vectors of nodes.
        starts: Start of each target's edges in `sources`, from 0, and the end of the last.
        sources: The source of each edge, a position in `vectors`.
        how: "mean", "sum" or "max", number by number.
    """
    return aggregate_by_torch(vectors, starts, sources, how)


def aggregate_by_torch(
    vectors: Float[Tensor, "n dim"],
    starts: Int64[Tensor, " targets_and_one"],
    sources: Int64[Tensor, " edges"],
    how: Aggregation = "mean",
) -> Float[Tensor, "targets dim"]:
    """`aggregate` of any dtype on any device; deterministic if torch is told to be."""
    if sources.shape[0] == 0:  # embedding_bag refuses a table without rows
        return vectors.new_zeros(starts.shape[0] - 1, vectors.shape[1]) + vectors[:0].sum()
    if how == "max":
        return _maxima(vectors, starts, sources)
    return F.embedding_bag(sources, vectors, starts, mode=how, include_last_offset=True)


def _maxima(vectors: Tensor, starts: Tensor, sources: Tensor) -> Tensor:
    """The maximum of each number; its gradient is deterministic, unlike that of embedding_bag."""
    num_targets, num_edges = starts.shape[0] - 1, sources.shape[0]
    shape = (num_targets, vectors.shape[1])
    targets = torch.arange(num_targets, device=starts.device).repeat_interleave(
        starts.diff(), output_size=num_edges
    )
    read = vectors.detach().index_select(0, sources)
    lines = targets.unsqueeze(1).expand_as(read)
    peaks = read.new_full(shape, -torch.inf).scatter_reduce(0, lines, read, "amax")
    is_peak = (read == peaks.index_select(0, targets)) | read.isnan()
    edges = torch.arange(num_edges, device=starts.device).unsqueeze(1).where(is_peak, num_edges)
    first = edges.new_full(shape, num_edges).scatter_reduce(0, lines, edges, "amin")
    has_edges = (starts.diff() > 0).unsqueeze(1)
    return vectors.gather(0, sources[first.clamp(max=num_edges - 1)]).where(has_edges, 0)
