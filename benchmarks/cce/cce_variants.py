"""Variants of CCE that "Clustering the Sketch" tried and left out (its Appendix A).

They are for experiments: single process, shared codes, and no encoded ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.contracts import EmbeddingTable, PlannedRecluster
from outsize.hashing import derive_seed, draw_hashes, hash_ids
from outsize.spec import TableSpec
from outsize.tables import CCETable
from outsize.tables.block_clustering import BlockClustering
from outsize.tables.columns import gather_pieces
from outsize.tables.moments import reset_moments
from outsize.tables.pointers import unpack
from outsize.tables.weights import fresh_weight


class HelpersTable(CCETable):
    """CCE with several helper tables: "using multiple helper tables".

    Codes and helpers have equally many rows. Every clustering zeroes all helpers and draws new
    hashes for them.

    Args:
        spec: The table.
        num_buckets: Rows of codes and helpers together.
        num_helpers: Number of helpers, 2 or more.
        seed: As in `CCETable`.
    """

    can_encode = False

    def __init__(
        self, spec: TableSpec, *, num_buckets: int, num_helpers: int = 2, seed: int = 0
    ) -> None:
        rows = num_buckets // (num_helpers + 1)
        super().__init__(spec, num_buckets=num_buckets - rows * (num_helpers - 1), seed=seed)
        std = spec.init.std_for(spec.dim) * (num_helpers + 1) ** -0.5
        with torch.no_grad():
            self.weight.mul_((2 / (num_helpers + 1)) ** 0.5)
        self.helpers = nn.ParameterList(
            fresh_weight(spec, rows, spec.dim, std, seed, f"helper {j}")
            for j in range(1, num_helpers)
        )
        hashes = [self._draw(j) for j in range(len(self.helpers))]
        self.register_buffer("further_hashes", torch.stack(hashes))
        self.further_hashes: Tensor

    def settings(self) -> dict[str, Any]:  # noqa: D102
        num_buckets = self.weight.shape[0] + sum(rows.shape[0] for rows in self.helpers)
        return {"num_buckets": num_buckets, "num_helpers": len(self.helpers) + 1, "seed": self.seed}

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        vectors = super().lookup(ids)
        for rows, hashes in zip(self.helpers, self.further_hashes, strict=True):
            pieces = hash_ids(ids, hashes, rows.shape[0] * self.columns)
            vectors = vectors + gather_pieces(rows, pieces)
        return vectors

    def plan_recluster(  # noqa: D102
        self, optimizer: Optimizer | None = None, *arguments: Any, **options: Any
    ) -> PlannedRecluster:
        plan = super().plan_recluster(optimizer, *arguments, **options)
        return _followed_by(plan, lambda: self._renew_helpers(optimizer))

    def plan_blocks(  # noqa: D102
        self, clustering: BlockClustering, optimizer: Optimizer | None = None
    ) -> PlannedRecluster:
        plan = super().plan_blocks(clustering, optimizer)
        return _followed_by(plan, lambda: self._renew_helpers(optimizer))

    @torch.no_grad()
    def _renew_helpers(self, optimizer: Optimizer | None) -> None:
        for j, rows in enumerate(self.helpers):
            rows.zero_()
            self.further_hashes[j] = self._draw(j)
            if optimizer is not None:
                reset_moments(optimizer, rows)

    def _draw(self, number: int) -> Int64[Tensor, "columns 9"]:
        seed = derive_seed(self.seed, "further helper", number, int(self.num_clusterings))
        return draw_hashes(self.columns, seed)


class LargeSketchTable(CCETable):
    """CCE with more parameters until its first clustering: "more parameters before clustering".

    Args:
        spec: The table.
        num_buckets: Rows of codes and helper after the first clustering.
        factor: How many times as many rows it has before.
        seed: As in `CCETable`.
    """

    can_encode = False

    def __init__(
        self, spec: TableSpec, *, num_buckets: int, factor: int = 4, seed: int = 0
    ) -> None:
        super().__init__(spec, num_buckets=num_buckets, seed=seed)
        self.sketch = CCETable(spec, num_buckets=factor * num_buckets, seed=seed)
        self.factor = factor

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {"num_buckets": self.weight.shape[0], "factor": self.factor, "seed": self.seed}

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        if int(self.num_clusterings) == 0:
            return self.sketch.lookup(ids)
        return super().lookup(ids)


class ResidualHelperTable(CCETable):
    """CCE whose helper starts at the residuals: "smarter initialization after clustering".

    A row of the helper starts at the mean of what clustering lost of the ids that share it,
    weighted by how often they occur.
    """

    can_encode = False

    def __init__(self, spec: TableSpec, *, num_buckets: int, seed: int = 0) -> None:
        super().__init__(spec, num_buckets=num_buckets, seed=seed)
        self._probed = torch.empty(0)

    def cluster_blocks(  # noqa: D102
        self, counts: Int64[Tensor, " num_rows"] | None = None, **options: Any
    ) -> BlockClustering:
        clustering = super().cluster_blocks(counts, **options)
        self._probed = rows_of_blocks(self, clustering)
        return clustering

    def plan_blocks(  # noqa: D102
        self, clustering: BlockClustering, optimizer: Optimizer | None = None
    ) -> PlannedRecluster:
        plan, before = super().plan_blocks(clustering, optimizer), self._probed
        weights = self._weights_of(clustering.counts)
        return _followed_by(plan, lambda: self._fill_helper(before, weights))

    def plan_recluster(  # noqa: D102
        self,
        optimizer: Optimizer | None = None,
        counts: Int64[Tensor, " num_rows"] | None = None,
        **options: Any,
    ) -> PlannedRecluster:
        ids = torch.arange(self.spec.num_rows)
        with torch.no_grad():
            before = self.lookup(ids)
        plan = super().plan_recluster(optimizer, counts, **options)
        weights = self._weights_of(counts)
        return _followed_by(plan, lambda: self._fill_helper(before, weights))

    def _weights_of(self, counts: Int64[Tensor, " num_rows"] | None) -> Float[Tensor, " num_rows"]:
        return torch.ones(self.spec.num_rows) if counts is None else counts.float()

    @torch.no_grad()
    def _fill_helper(
        self, before: Float[Tensor, "num_rows dim"], weights: Float[Tensor, " num_rows"]
    ) -> None:
        ids = torch.arange(self.spec.num_rows)
        width = self.spec.dim // self.columns
        lost = (before - self.lookup(ids)).view(-1, width)
        places = self.num_codes + unpack(self.copy_pointers(ids))[:, self.columns :].flatten()
        pieces = self.weight.view(-1, width)
        shares = weights.repeat_interleave(self.columns)
        totals = torch.zeros(pieces.shape[0]).index_add_(0, places, shares)
        sums = torch.zeros_like(pieces).index_add_(0, places, lost * shares.unsqueeze(1))
        pieces[self.num_codes :] = (sums / totals.clamp_min(1e-12).unsqueeze(1))[self.num_codes :]


def seeded_table(
    rows: Mapping[str, Float[Tensor, "num_rows dim"]], keep_codes: bool
) -> type[CCETable]:
    """A table whose pointers are those of a product quantization: "seeding with PQ".

    Args:
        rows: The trained rows that are quantized, by table.
        keep_codes: Whether codes start at the centroids; otherwise they are drawn afresh, as in the
            text, and only the pointers stay.
    """

    class SeededTable(CCETable):
        can_encode = False

        def __init__(self, spec: TableSpec, *, num_buckets: int, seed: int = 0) -> None:
            super().__init__(spec, num_buckets=num_buckets, seed=seed)
            fresh = self.weight.detach() * 2**0.5  # a vector is no longer the sum of two rows
            self.recluster(vectors=rows[spec.name], helper=False)
            if not keep_codes:
                with torch.no_grad():
                    self.weight.copy_(fresh)

    return SeededTable


def iterated_table(iterations: int) -> type[CCETable]:
    """CCE whose k-means may take so many iterations."""

    class IteratedTable(CCETable):
        can_probe = False

        def __init__(self, spec: TableSpec, *, num_buckets: int, seed: int = 0) -> None:
            super().__init__(spec, num_buckets=num_buckets, seed=seed)

        def plan_recluster(self, *arguments: Any, **options: Any) -> PlannedRecluster:
            return super().plan_recluster(*arguments, **{**options, "iterations": iterations})

    return IteratedTable


@torch.no_grad()
def rows_of_blocks(
    table: EmbeddingTable, clustering: BlockClustering
) -> Float[Tensor, "num_rows dim"]:
    """Keep the rows that a clustering is given, in the tensor returned; all of them at once.

    Ids without a row have their vector in the table.

    Args:
        table: The table.
        clustering: What rows are added to.
    """
    rows = table.lookup(torch.arange(table.spec.num_rows)).float()
    add = clustering.add

    def keep(ids: Tensor, vectors: Tensor) -> None:
        rows[ids] = vectors.float()
        add(ids, vectors)

    clustering.__dict__["add"] = keep
    return rows


def _followed_by(plan: PlannedRecluster, then: Callable[[], None]) -> PlannedRecluster:
    def write() -> None:
        plan.write()
        then()

    return replace(plan, write=write)
