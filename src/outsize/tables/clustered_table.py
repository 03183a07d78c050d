"""Tables whose codes and pointers are found by clustering the vectors of ids.

Clustering runs k-means on the columns of T: the centroids become the codes, the assignments become
the pointers, and the helper gets new random hashes and zeros. From then on, similar ids share
codes, and the helper learns how they differ. A last clustering may do without the helper: its rows
become codes, and ids share those alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor
from torch.optim import Optimizer

from outsize.clustering import CHUNK_POINTS
from outsize.contracts import PlannedRecluster, ReclusterReport
from outsize.errors import ReclusterError
from outsize.hashing import derive_seed
from outsize.ranks.failures import failing_together
from outsize.tables.block_clustering import BlockClustering
from outsize.tables.columns import stack_columns, unstack_columns
from outsize.tables.composed_table import ALL_CODES, ComposedTable
from outsize.tables.reclustering import (
    ITERATIONS,
    PointsOf,
    fit_codes,
    nearest_pointers,
    plan_recluster,
    report_ids,
    require_occurring,
    squared_errors,
)
from outsize.tables.shared_lines import LinePoints, SharedLines


class ClusteredTable(ComposedTable):
    """A composed table that reclusters; see the module docstring."""

    can_recluster = True
    can_probe = True

    @property
    @abstractmethod
    def pointer_bits(self) -> int:
        """Bits of a stored pointer."""

    @abstractmethod
    def _blank_pointers(self) -> Integer[Tensor, "lines columns"]:
        """A tensor of the shape, type and device of all pointers."""

    @abstractmethod
    def _stored(
        self, pointers: Integer[Tensor, "lines columns"], lines: SharedLines | None
    ) -> dict[str, Tensor]:
        """The buffers that store new pointers.

        Args:
            pointers: The new pointers.
            lines: Which ids read which of them; `None` if each has its own.
        """

    def _lines_after(self, counts: Int64[Tensor, " num_rows"] | None) -> SharedLines | None:
        """Which line of pointers ids read after the next clustering; `None` for one each."""
        return None

    @abstractmethod
    def _pointers_in(
        self, buffers: Mapping[str, Tensor], ids: Int64[Tensor, " n"]
    ) -> Int64[Tensor, "n columns"]:
        """The codes that ids point to after a clustering, by what `_stored` returned."""

    @abstractmethod
    def _distinct_pointers(self, buffers: Mapping[str, Tensor]) -> Integer[Tensor, "lines columns"]:
        """All pointers in what `_stored` returned."""

    def recluster(
        self,
        optimizer: Optimizer | None = None,
        counts: Int64[Tensor, " num_rows"] | None = None,
        *,
        vectors: Float[Tensor, "num_rows dim"] | None = None,
        helper: bool = True,
        iterations: int = ITERATIONS,
        tolerance: float = 0.0,
        batch_rows: int = CHUNK_POINTS,
        progress: bool = False,
    ) -> ReclusterReport:
        """Cluster the vectors of all ids, and replace codes and pointers by the result.

        Nothing is written before everything is computed: a clustering that fails or is stopped
        leaves the table unchanged. With several ranks, call it on all of them: the first rank
        clusters and all receive its result. If any rank raises, all raise.

        Args:
            optimizer: The optimizer that trains this table; its state for the table is reset.
            counts: How often each id occurs; frequent ids then have more weight.
            vectors: What to cluster instead of the table's own vectors, such as rows that ids have
                been trained with on their own; `outsize.Probe` does that in less memory.
            helper: Whether half of the rows are a helper from now on. Without one, as many rows
                become codes as pointers of their type can name: usually all.
            iterations: Maximum number of k-means iterations.
            tolerance: k-means also stops when an iteration lowers its error by no more than this
                share of it; 0 to go on until no assignment changes.
            batch_rows: Ids per batch of the assignment; the result does not depend on it.
            progress: Show a progress bar on standard error.
        """
        return self.plan_recluster(
            optimizer,
            counts,
            vectors=vectors,
            helper=helper,
            iterations=iterations,
            tolerance=tolerance,
            batch_rows=batch_rows,
            progress=progress,
        ).apply()

    def plan_recluster(  # noqa: D102
        self,
        optimizer: Optimizer | None = None,
        counts: Int64[Tensor, " num_rows"] | None = None,
        *,
        vectors: Float[Tensor, "num_rows dim"] | None = None,
        helper: bool = True,
        iterations: int = ITERATIONS,
        tolerance: float = 0.0,
        batch_rows: int = CHUNK_POINTS,
        progress: bool = False,
    ) -> PlannedRecluster:
        num_main = self.num_main_after(helper)
        with failing_together(ReclusterError):
            if vectors is not None:
                self._require_rows(vectors)
                vectors = vectors.detach().to(self.weight.device)

        def rewrite() -> dict[str, Tensor]:
            points_of = self._points_of if vectors is None else self._points_in(vectors)
            return self._clustered(
                points_of, counts, num_main, iterations, batch_rows, progress, tolerance
            )

        def errors(changed: dict[str, Tensor]) -> tuple[float, float]:
            ids = report_ids(self.spec, self.weight.device)
            before = self.lookup(ids) if vectors is None else vectors.index_select(0, ids)
            return squared_errors(before, self._vectors_after(changed, ids))

        return self._plan(rewrite, num_main, optimizer, errors)

    def cluster_blocks(
        self,
        counts: Int64[Tensor, " num_rows"] | None = None,
        *,
        blocks: int,
        helper: bool = True,
        tolerance: float = 0.0,
    ) -> BlockClustering:
        """Begin a clustering of vectors that arrive block by block, see `BlockClustering`.

        Args:
            counts: How often each id occurs; needed by the first rank only.
            blocks: Number of blocks that ids are divided into.
            helper: As in `recluster`.
            tolerance: As in `recluster`.
        """
        with failing_together(ReclusterError):
            if counts is not None:
                require_occurring(self.spec, counts)
            lines = self._lines_after(counts)
        return BlockClustering(
            self.spec,
            blocks,
            self.num_main_after(helper) * self._pool,
            self._blank_pointers(),
            self._pieces_of,
            counts=counts,
            device=self.weight.device,
            seed=self._clustering_seed(),
            points_per_id=self._pool,
            tolerance=tolerance,
            lines=lines,
        )

    def plan_blocks(
        self, clustering: BlockClustering, optimizer: Optimizer | None = None
    ) -> PlannedRecluster:
        """Plan the reclustering that `cluster_blocks` began, once every block was added."""
        num_main = clustering.num_codes // self._pool

        def rewrite() -> dict[str, Tensor]:
            codes, pointers = clustering.result(self._points_of)
            return self._rewritten(codes, pointers, num_main, clustering.lines)

        return self._plan(rewrite, num_main, optimizer, lambda changed: clustering.errors())

    def _plan(
        self,
        rewrite: Callable[[], dict[str, Tensor]],
        num_main: int,
        optimizer: Optimizer | None,
        errors: Callable[[dict[str, Tensor]], tuple[float, float]],
    ) -> PlannedRecluster:
        return plan_recluster(
            self,
            self.weight,
            rewrite,
            num_main * self._pool,
            optimizer,
            pooled=self.shared,
            errors=errors,
            pointers=self._distinct_pointers,
            pointer_bits=self.pointer_bits,
        )

    def _clustered(
        self,
        points_of: PointsOf,
        counts: Int64[Tensor, " num_rows"] | None,
        num_main: int,
        iterations: int,
        batch_rows: int,
        progress: bool,
        tolerance: float = 0.0,
    ) -> dict[str, Tensor]:
        """The parameters and buffers of this table after clustering the points of all ids."""
        if counts is not None:
            require_occurring(self.spec, counts)
        lines, spec = self._lines_after(counts), self.spec
        if lines is not None:
            points_of = LinePoints(lines, points_of, counts)
            spec, counts = replace(spec, num_rows=lines.num_lines), points_of.counts
        fitted = fit_codes(
            spec,
            points_of,
            num_main * self._pool,
            counts,
            device=self.weight.device,
            seed=self._clustering_seed(),
            iterations=iterations,
            progress=progress,
            points_per_id=self._pool,
            tolerance=tolerance,
        )
        pointers = nearest_pointers(points_of, fitted.codes, self._blank_pointers(), batch_rows)
        return self._rewritten(fitted.codes, pointers, num_main, lines)

    def _rewritten(
        self,
        codes: Float[Tensor, "groups codes width"],
        pointers: Integer[Tensor, "lines columns"],
        num_main: int,
        lines: SharedLines | None,
    ) -> dict[str, Tensor]:
        """The parameters and buffers of this table with new codes and pointers."""
        number = self.num_clusterings + 1
        flags = int(self.shared) + (0 if num_main == self._halves[0] else ALL_CODES)
        return {
            **self._stored(pointers, lines),
            "weight": self._weight_of(codes, num_main),
            "helper_hashes": self._next_hashes(),
            "num_clusterings": number,
            "meaning": torch.tensor([self.columns, flags], device=self.meaning.device),
        }

    def _vectors_after(
        self, changed: Mapping[str, Tensor], ids: Int64[Tensor, " n"]
    ) -> Float[Tensor, "n dim"]:
        """The vectors of ids after a clustering: codes alone, since its helper is zero."""
        return self._gather(changed["weight"], self._pointers_in(changed, ids))

    def _next_hashes(self) -> Int64[Tensor, "columns 9"]:
        """The hashes of the helper after the next clustering."""
        return self._draw_helper(int(self.num_clusterings) + 1).to(self.helper_hashes.device)

    def _clustering_seed(self) -> int:
        return derive_seed(self.seed, "recluster", int(self.num_clusterings))

    def _fit(
        self,
        rows: Float[Tensor, "num_rows dim"],
        counts: Int64[Tensor, " num_rows"] | None,
        progress: bool,
    ) -> None:
        """Cluster the columns of the rows, as `recluster` does with the table's own vectors."""
        changed = self._clustered(
            self._points_in(rows), counts, self._halves[0], ITERATIONS, CHUNK_POINTS, progress
        )
        for name, values in changed.items():
            getattr(self, name).copy_(values)
        self.renew_version()

    def _points_in(self, rows: Float[Tensor, "num_rows dim"]) -> PointsOf:
        """The columns of given rows instead of the table's own vectors."""

        def points_of(ids: Int64[Tensor, " n"]) -> Float[Tensor, "groups points width"]:
            return self._pieces_of(rows.index_select(0, ids).float())

        return points_of

    def _points_of(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "groups points width"]:
        """The columns of the ids' vectors, as one group of all columns or one group per column."""
        return self._pieces_of(self.lookup(ids).float())

    def _pieces_of(self, vectors: Float[Tensor, "n dim"]) -> Float[Tensor, "groups points width"]:
        """Vectors cut into columns, as one group of all columns or one group per column."""
        if self.shared:
            return vectors.view(1, -1, self.spec.dim // self.columns)
        return stack_columns(vectors, self.columns)

    def _weight_of(
        self, centroids: Float[Tensor, "groups codes width"], num_main: int
    ) -> Float[Tensor, "rows dim"]:
        """A weight whose codes are the centroids, and whose helper is zero."""
        codes = centroids if self.shared else unstack_columns(centroids, self.spec.dim)
        weight = torch.zeros_like(self.weight)
        weight[:num_main] = codes.reshape(num_main, self.spec.dim).to(weight)
        return weight
