"""Mean, sum or maximum of the vectors of each node's neighbours.

The edges are grouped by target, as in a `Neighborhood` or in a slice of a graph. `F.embedding_bag`
is the reference for sums and means. For the maximum each number is that of one edge, the first of
equals, and the gradient goes to its source.

The compiled path sums in the order of edges, gradients too, for which it groups the edges by their
source: the result does not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.errors import DataError
from outsize.kernels.arrays import array, empty, is_plain, is_plain_float
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.huge_pages import prefer_huge_pages
from outsize.kernels.threads import num_parts, run_parts

Aggregation = Literal["mean", "sum", "max"]
_LEAST_EDGES = 1024
_LEAST_NUMBERS = 1 << 16  # per thread
_MOST_NODES = 1 << 31
_LINE_FLOATS = 16  # numbers in a cache line, which two threads should not write at once


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
    num_edges = sources.shape[0]
    if (
        is_worthwhile(num_edges, _LEAST_EDGES)
        and is_plain(starts, sources)
        and is_plain_float(vectors := vectors.contiguous())
        and max(vectors.shape[0], starts.shape[0]) < _MOST_NODES
        and _kernels() is not None
    ):
        starts, sources = starts.contiguous(), sources.contiguous()
        _require_edges(starts, sources, vectors.shape[0])
        aggregated: Tensor
        if how == "max":
            aggregated = _Maxima.apply(vectors, starts, sources)
        else:
            aggregated = _Sums.apply(vectors, starts, sources, how == "mean")
        return aggregated
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


class _Sums(torch.autograd.Function):
    """Sums or means; the gradient is `_SumsOfTargets`, whose gradient is `_Sums` again."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, starts: Tensor, sources: Tensor, mean: bool) -> Tensor:
        ctx.save_for_backward(starts, sources)
        ctx.mean, ctx.num_nodes = mean, vectors.shape[0]
        out = _new(starts.shape[0] - 1, vectors.shape[1])
        edges = (array(vectors), array(starts), array(sources))
        run_parts(_kernels().sum_sources, _parts(sources, out), *edges, mean, array(out))
        return out

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Any:
        edges = ctx.saved_tensors
        given = (gradients.contiguous(), *edges, ctx.mean, ctx.num_nodes)
        return _SumsOfTargets.apply(*given), None, None, None


class _SumsOfTargets(torch.autograd.Function):
    """The gradient of `_Sums`."""

    @staticmethod
    def forward(
        ctx: Any, gradients: Tensor, starts: Tensor, sources: Tensor, mean: bool, num_nodes: int
    ) -> Tensor:
        ctx.save_for_backward(starts, sources)
        ctx.mean = mean
        by_source = empty(num_nodes + 1, dtype=torch.int64)
        targets = empty(sources.shape[0], dtype=torch.int32)
        _kernels().transpose(array(starts), array(sources), by_source, targets)
        out = _new(num_nodes, gradients.shape[1])
        run_parts(
            _kernels().sum_targets, _parts(sources, out), array(gradients), array(starts), mean,
            by_source, targets, array(out),
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Any:
        edges = ctx.saved_tensors
        return _Sums.apply(gradients.contiguous(), *edges, ctx.mean), None, None, None, None


class _Maxima(torch.autograd.Function):
    """Maxima of each number."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, starts: Tensor, sources: Tensor) -> Tensor:
        out = _new(starts.shape[0] - 1, vectors.shape[1])
        winners = torch.empty(out.shape, dtype=torch.int32)
        edges = (array(vectors), array(starts), array(sources))
        run_parts(_kernels().max_sources, _parts(sources, out), *edges, array(out), array(winners))
        ctx.save_for_backward(winners)
        ctx.num_nodes = vectors.shape[0]
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> Any:
        (winners,) = ctx.saved_tensors
        out = _new(ctx.num_nodes, gradients.shape[1]).zero_()
        parts = min(num_parts(gradients.numel(), _LEAST_NUMBERS), -(-out.shape[1] // _LINE_FLOATS))
        given = (array(gradients.contiguous()), array(winners))
        run_parts(_kernels().add_to_winners, max(parts, 1), *given, array(out))
        return out, None, None


def _kernels() -> Any:
    return compiled("neighbors.aggregate_numba")


def _new(*shape: int) -> Tensor:
    """An uninitialized matrix; small pages of a large one would cost more than the sums."""
    return prefer_huge_pages(torch.empty(shape))


def _parts(sources: Tensor, out: Tensor) -> int:
    return num_parts(sources.shape[0] * out.shape[1], _LEAST_NUMBERS)


def _require_edges(starts: Tensor, sources: Tensor, num_nodes: int) -> None:
    """Raise unless kernels can follow the edges; they check nothing."""
    num_edges = sources.shape[0]
    if int(starts[0]) != 0 or int(starts[-1]) != num_edges or bool((starts.diff() < 0).any()):
        raise DataError(f"starts must not decrease, from 0 to the number of edges, {num_edges}")
    if num_edges:
        least, most = (int(value) for value in sources.aminmax())
        if least < 0 or most >= num_nodes:
            raise DataError(
                f"sources are {least} … {most}, but there are vectors of {num_nodes} nodes"
            )
