"""Ids that share lines of pointers, and the points that these lines stand for in a clustering.

A table with fewer lines of pointers than ids gives frequent ids a line each; the other ids share
the rest. Ids that share a line always have the same vector, so that the best one for them is their
mean. A shared line is therefore clustered as one point: the weighted mean of its ids, with the
weight of all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from outsize.clustering import CHUNK_POINTS
from outsize.spec import MemoryUse

_RARE = 1e-6  # weight of an id that never occurs, beside counts


class SharedLines:
    """Which line an id reads: the i-th of the ids in `own` has line i, the others share the rest.

    Args:
        own: Ids with a line of their own, ascending.
        num_rows: Number of ids.
        num_shared: Number of shared lines, 1 or more.
        shared_by: Which shared line ids read that have none of their own.

    Attributes:
        own: As given.
        num_lines: Number of lines, those of ids first.
    """

    def __init__(
        self,
        own: Int64[Tensor, " own"],
        num_rows: int,
        num_shared: int,
        shared_by: Callable[[Int64[Tensor, " n"]], Int64[Tensor, " n"]],
    ) -> None:
        self.own = own
        self.num_shared = num_shared
        self.num_lines = own.numel() + num_shared
        self._is_own = torch.zeros(num_rows, dtype=torch.bool, device=own.device)
        self._is_own[own] = True
        self._shared_by = shared_by

    def is_own(self, ids: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Whether ids have a line of their own."""
        return self._is_own[ids]

    def of_own(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """The lines of ids that have one of their own."""
        return torch.searchsorted(self.own, ids)

    def sums(self) -> SharedSums:
        """Sums for the points of shared lines, all zero."""
        return SharedSums(self.num_shared, self._shared_by)

    def memory_use(self, sums: SharedSums | None) -> MemoryUse:
        """Which ids have a line of their own, and sums for the others."""
        held = [] if sums is None else sums.held()
        return MemoryUse.of({"index": [self._is_own], "cache": held})

    def others(self) -> Int64[Tensor, " n"]:
        """Ids without a line of their own, ascending."""
        return (~self._is_own).nonzero().flatten()


class SharedSums:
    """Weighted sums of the points of ids, per shared line.

    Args:
        num_shared: Number of shared lines.
        shared_by: Which of them ids read.
    """

    def __init__(
        self, num_shared: int, shared_by: Callable[[Int64[Tensor, " n"]], Int64[Tensor, " n"]]
    ) -> None:
        self._num_shared = num_shared
        self._shared_by = shared_by
        self._sums: Tensor | None = None
        self._points_per_id = 1

    def add(
        self,
        ids: Int64[Tensor, " n"],
        points: Float[Tensor, "groups points width"],
        weights: Float64[Tensor, " n"],
    ) -> None:
        """Add points of ids without a line of their own; those of an id are adjacent."""
        if not ids.numel():
            return
        self._points_per_id = points.shape[1] // ids.numel()
        by_id = points.double().reshape(points.shape[0], ids.numel(), -1)
        mass = weights.to(by_id).view(1, -1, 1) + _RARE
        lines = torch.cat([by_id * mass, mass.expand(by_id.shape[0], -1, 1)], dim=2)
        if self._sums is None:
            self._sums = lines.new_zeros(lines.shape[0], self._num_shared, lines.shape[2])
        self._sums.index_add_(1, self._shared_by(ids), lines)

    def held(self) -> list[Tensor]:
        """The tensors that hold the sums; none before points were added."""
        return [] if self._sums is None else [self._sums]

    def masses(self) -> Float64[Tensor, " shared"]:
        """The weight of all ids that were added, per line."""
        if self._sums is None:
            return torch.zeros(self._num_shared, dtype=torch.float64)
        return self._sums[0, :, -1]

    def means(self) -> Float[Tensor, "groups points width"] | None:
        """The mean point of each line, of those without ids the mean of all; `None` without any."""
        if self._sums is None:
            return None
        sums = torch.where(
            self._sums[..., -1:] > 0, self._sums, self._sums.sum(dim=1, keepdim=True)
        )
        means = (sums[..., :-1] / sums[..., -1:]).float()
        return means.reshape(means.shape[0], self._num_shared * self._points_per_id, -1)


class LinePoints:
    """The points of lines, for a clustering: those of ids with a line, and means of the others.

    Args:
        lines: Which ids have lines.
        points_of: The points of ids; those of an id are adjacent.
        counts: How often each id occurs; alike by default.

    Attributes:
        counts: How often each line is read.
    """

    def __init__(
        self,
        lines: SharedLines,
        points_of: Callable[[Int64[Tensor, " n"]], Float[Tensor, "groups points width"]],
        counts: Int64[Tensor, " num_rows"] | None,
    ) -> None:
        self._lines = lines
        self._points_of = points_of
        sums = lines.sums()
        for ids in lines.others().split(CHUNK_POINTS):
            sums.add(ids, points_of(ids), _weights(ids, counts))
        self._means = sums.means()
        own = _weights(lines.own, counts)
        masses = torch.cat([own, sums.masses().to(own.device)])
        self.counts: Int64[Tensor, " lines"] = masses.round().long()

    def __call__(self, lines: Int64[Tensor, " n"]) -> Float[Tensor, "groups points width"]:
        """The points of lines."""
        num_own = self._lines.own.numel()
        points = self._points_of(self._lines.own[lines.clamp(max=num_own - 1)])
        shared = (lines >= num_own).nonzero().flatten()
        if shared.numel() and self._means is not None:
            groups, num_points, width = points.shape
            by_line = points.reshape(groups, lines.numel(), -1)
            means = self._means.reshape(groups, self._lines.num_shared, -1)
            by_line[:, shared] = means[:, lines[shared] - num_own].to(points)
            return by_line.reshape(groups, num_points, width)
        return points


def _weights(
    ids: Int64[Tensor, " n"], counts: Int64[Tensor, " num_rows"] | None
) -> Float64[Tensor, " n"]:
    if counts is None:
        return torch.ones(ids.numel(), dtype=torch.float64, device=ids.device)
    return counts[ids.to(counts.device)].to(ids.device, torch.float64)
