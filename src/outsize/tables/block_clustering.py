"""Clustering vectors that arrive block by block, so that they never exist all at once.

Ids are divided into blocks of equal size. The first block is a sample of all ids, frequent ones
first, and k-means is fitted on its vectors. Every block is assigned to the nearest codes and
forgotten. Last, each code moves to the mean of all vectors that were assigned to it: a Lloyd step
over all ids. Besides one block, this stores a byte per id, the new pointers and two sets of codes.
Of ids that share a line of pointers, it keeps the sum.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor

from outsize.clustering import CHUNK_POINTS, kmeans, nearest
from outsize.errors import ConfigError, ReclusterError
from outsize.ranks.collectives import broadcast_first, rank
from outsize.ranks.failures import failing_together
from outsize.spec import MemoryUse, TableSpec
from outsize.tables.pointers import pack
from outsize.tables.reclustering import ITERATIONS, POINTS_PER_CLUSTER, PointsOf, ids_to_cluster
from outsize.tables.shared_lines import SharedLines, SharedSums

MAX_BLOCKS = NO_BLOCK = 255
PiecesOf = Callable[[Float[Tensor, "n dim"]], Float[Tensor, "groups points width"]]


class BlockClustering:
    """A clustering of vectors that arrive in blocks; each is added once, the first one first.

    Made by all ranks, which receive the blocks that the first rank drew. An id that never occurs is
    in no block. Only the first rank adds vectors and has a result.

    Args:
        spec: The table.
        blocks: Number of blocks.
        num_codes: Codes per group of points.
        like: The old pointers; the new ones have their shape, type and device.
        pieces_of: Cuts vectors into points; within a group, those of one id are adjacent.
        counts: How often each id occurs, if known; needed by the first rank only.
        device: Where vectors are.
        seed: Seed of the sample and of k-means.
        points_per_id: Points per id in each group.
        tolerance: Of k-means, as in `outsize.clustering.kmeans`.
        lines: Which ids share pointers; `None` for none. Needed by the first rank only.

    Attributes:
        block_of: The block of each id; `NO_BLOCK` for none.
        counts: How often each id occurs, if known; on the first rank.
        lines: As given.
    """

    def __init__(
        self,
        spec: TableSpec,
        blocks: int,
        num_codes: int,
        like: Integer[Tensor, "lines columns"],
        pieces_of: PiecesOf,
        *,
        counts: Int64[Tensor, " num_rows"] | None = None,
        device: torch.device,
        seed: int = 0,
        points_per_id: int = 1,
        tolerance: float = 0.0,
        lines: SharedLines | None = None,
    ) -> None:
        if not 1 <= blocks <= MAX_BLOCKS:
            raise ConfigError(
                f"table {spec.name!r}: blocks must be between 1 and {MAX_BLOCKS}, but got {blocks}"
            )
        self.num_codes = num_codes
        self.lines = lines
        self._sums = None if lines is None else lines.sums()
        self._like = like
        self._pieces_of = pieces_of
        self.counts = None if counts is None else counts.cpu()
        self._device = device
        self._seed = seed
        self._points_per_id = points_per_id
        self._tolerance = tolerance
        self._pointers = torch.zeros_like(like) if rank() == 0 else None
        self._fitted: _Fitted | None = None
        numbers = torch.full((spec.num_rows,), NO_BLOCK, dtype=torch.uint8)
        with failing_together(ReclusterError):
            if rank() == 0:
                self._draw(spec, blocks, numbers)
        broadcast_first([numbers])
        self.block_of = numbers.to(device)

    def _draw(self, spec: TableSpec, blocks: int, numbers: Tensor) -> None:
        """Fill in the block of each id, and store the weights of the first block."""
        occurs = torch.ones(1, dtype=torch.bool).expand(spec.num_rows)
        if self.counts is not None:
            occurs = self.counts > 0
        size = -(-int(occurs.sum()) // blocks)
        sample, weights = ids_to_cluster(spec, self.counts, max(1, size), self._seed)
        self._sample_weights = weights[sample.argsort()]
        numbers[sample] = 0
        rest = (occurs & (numbers != 0)).nonzero().flatten()
        numbers[rest] = (torch.arange(rest.numel()) % max(1, blocks - 1) + 1).to(torch.uint8)

    def ids_of(self, block: int) -> Int64[Tensor, " n"]:
        """The ids of a block, ascending."""
        return (self.block_of == block).nonzero().flatten()

    def memory_use(self) -> MemoryUse:
        """The block of each id, and the sums for lines that ids share; not codes and pointers."""
        use = MemoryUse.of({"index": [self.block_of]})
        return use if self.lines is None else use + self.lines.memory_use(self._sums)

    @torch.no_grad()
    def add(self, ids: Int64[Tensor, " n"], vectors: Float[Tensor, "n dim"]) -> None:
        """Assign the ids of a block to the codes nearest to their vectors.

        The first call fits the codes.
        """
        if not ids.numel():
            return
        if self._fitted is None:
            self._fitted = self._fit(ids, vectors.float())
        for some, part in zip(
            ids.split(CHUNK_POINTS), vectors.float().split(CHUNK_POINTS), strict=True
        ):
            weights = self._weights_of(some)
            self._fitted.see(part, weights)
            self._add_points(some, self._pieces_of(part), weights)

    def _add_points(self, ids: Tensor, points: Tensor, weights: Tensor) -> None:
        """Point ids to codes, or add them to the sums of the lines that they share."""
        assert self._fitted is not None
        own, others = self._told_apart(ids)
        if self._sums is not None and others.numel():
            self._sums.add(ids[others], _at(points, others, ids.numel()), weights[others])
            if not own.numel():
                return
            ids, points, weights = ids[own], _at(points, own, ids.numel()), weights[own]
        labels = self._assign(self._line_of(ids), points, self._fitted.codes)
        self._fitted.add(points, labels, weights)

    def result(
        self, points_of: PointsOf
    ) -> tuple[Float[Tensor, "groups codes width"], Integer[Tensor, "lines columns"]]:
        """Codes and pointers, once every block was added.

        Args:
            points_of: The points of ids that are in no block.
        """
        assert self._fitted is not None
        assert self._pointers is not None
        absent = self.ids_of(NO_BLOCK).split(CHUNK_POINTS)
        if self._sums is not None:
            for some in absent:
                others = some[self._told_apart(some)[1]]
                self._sums.add(others, points_of(others), torch.zeros_like(others).double())
            self._assign_shared(self._sums)
        codes = self._fitted.means()
        for some in absent:
            own = some[self._told_apart(some)[0]]
            if own.numel():
                self._assign(self._line_of(own), points_of(own), codes)
        return codes, self._pointers

    def _assign_shared(self, sums: SharedSums) -> None:
        """Point shared lines to the codes nearest to the means of their ids."""
        assert self._fitted is not None
        assert self.lines is not None
        means = sums.means()
        if means is not None:
            lines = self.lines.own.numel() + torch.arange(self.lines.num_shared)
            labels = self._assign(lines.to(means.device), means, self._fitted.codes)
            self._fitted.add(means, labels, sums.masses())

    def _told_apart(self, ids: Int64[Tensor, " n"]) -> tuple[Tensor, Tensor]:
        """The places of ids with a line of their own, and of those that share one."""
        if self.lines is None:
            return torch.arange(ids.numel(), device=ids.device), ids[:0]
        is_own = self.lines.is_own(ids)
        return is_own.nonzero().flatten(), (~is_own).nonzero().flatten()

    def _line_of(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """The lines of ids that have one of their own."""
        return ids if self.lines is None else self.lines.of_own(ids)

    def errors(self) -> tuple[float, float]:
        """Mean squared distance of added vectors to their codes, and to the mean vector."""
        assert self._fitted is not None
        return self._fitted.errors()

    def _fit(self, ids: Int64[Tensor, " n"], vectors: Float[Tensor, "n dim"]) -> _Fitted:
        """Fit codes on the first block, in which shared lines are the means of their ids there."""
        points, weights = self._pieces_of(vectors), self._sample_weights.to(self._device)
        own, others = self._told_apart(ids)
        if self.lines is not None and others.numel():
            sums, size = self.lines.sums(), ids.numel()
            for some in others.split(CHUNK_POINTS):
                sums.add(ids[some], _at(points, some, size), weights[some].double())
            means, masses = sums.means(), sums.masses()
            assert means is not None
            points = torch.cat([_at(points, own, size), means], dim=1)
            weights = torch.cat([weights[own], masses.to(weights)])
        clustering = kmeans(
            points,
            self.num_codes,
            weights=weights.repeat_interleave(self._points_per_id),
            iterations=ITERATIONS,
            seed=self._seed,
            max_points_per_cluster=POINTS_PER_CLUSTER,
            tolerance=self._tolerance,
        )
        return _Fitted(clustering.centroids)

    def _assign(
        self,
        lines: Int64[Tensor, " n"],
        points: Float[Tensor, "groups points width"],
        codes: Float[Tensor, "groups codes width"],
    ) -> Int64[Tensor, "groups points"]:
        """Point lines to the codes nearest to their points; returns the code of each point."""
        assert self._pointers is not None
        labels = nearest(points, codes)
        by_line = labels.view(labels.shape[0], lines.numel(), -1).transpose(0, 1)
        found = pack(by_line.reshape(lines.numel(), -1), self._like.dtype)
        self._pointers[lines.to(self._like.device)] = found.to(self._like.device)
        return labels

    def _weights_of(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, " n"]:
        if self.counts is None:
            return torch.ones(ids.numel(), dtype=torch.float64, device=self._device)
        return self.counts[ids.cpu()].to(self._device, torch.float64)


class _Fitted:
    """Codes, with the weighted sums of the points assigned to each."""

    def __init__(self, codes: Float[Tensor, "groups codes width"]) -> None:
        self.codes = codes
        self._sums = torch.zeros_like(codes, dtype=torch.float64)
        self._masses = self._sums.new_zeros(codes.shape[:2])
        self._squares = self._weight = 0.0
        self._total: Tensor | None = None

    def see(self, vectors: Tensor, weights: Tensor) -> None:
        """Count vectors of ids in the errors."""
        total = weights @ vectors.double()
        self._total = total if self._total is None else self._total + total
        self._squares += float(weights @ vectors.double().square().sum(dim=1))
        self._weight += float(weights.sum())

    def add(self, points: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Add points, given with their labels and the weights of their lines."""
        repeats = points.shape[1] // weights.numel()
        of_points = weights.repeat_interleave(repeats)
        for group, found in enumerate(labels):
            weighted = points[group].double() * of_points.unsqueeze(1)
            self._sums[group].index_add_(0, found, weighted)
            self._masses[group].index_add_(0, found, of_points)

    def means(self) -> Float[Tensor, "groups codes width"]:
        """The mean of the points of each code; a code without any stays where it is."""
        masses = self._masses.unsqueeze(-1)
        means = self._sums / masses.clamp_min(1e-300)
        return torch.where(masses > 0, means, self.codes.double()).float()

    def errors(self) -> tuple[float, float]:
        """Mean squared distance of vectors to their codes, and to the mean of all."""
        assert self._total is not None
        explained = (self._sums.square().sum(dim=-1) / self._masses.clamp_min(1e-300)).sum()
        of_mean = float(self._total.square().sum()) / self._weight
        mse = max(0.0, self._squares - float(explained)) / self._weight
        return mse, max(0.0, self._squares - of_mean) / self._weight


def _at(points: Tensor, places: Tensor, num_ids: int) -> Tensor:
    """The points of the ids at some places; those of an id are adjacent."""
    groups, num_points, width = points.shape
    by_id = points.view(groups, num_ids, -1)[:, places]
    return by_id.reshape(groups, places.numel() * (num_points // num_ids), width)
