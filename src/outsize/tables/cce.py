"""Clustered compositional embeddings (Tsang and Ahle, "Clustering the Sketch", Algorithm 3).

    T[i] = [M₁[h₁(i)] + M'₁[h'₁(i)] | … | M_c[h_c(i)] + M'_c[h'_c(i)]]

The pointers h start as random hashes. `recluster` runs k-means on the columns of T: the centroids
become the codes M, the assignments become the pointers h, and the helper table M' gets new random
hashes h' and zeros. From then on, similar ids share codes, and the helper learns how they differ.
A last clustering may do without the helper: its rows become codes, and ids share those alone.

As an extension of the paper, the columns may share one pool of codes (`shared`), like ROBE's array:
each column then chooses among c·k codes instead of k. Columns rarely have a meaning of their own,
so this gives a finer clustering for the same number of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor
from torch.optim import Optimizer

from outsize.clustering import CHUNK_POINTS
from outsize.contracts import PlannedRecluster, ReclusterReport
from outsize.errors import ConfigError, ReclusterError
from outsize.hashing import derive_seed, draw_hashes, hash_ids
from outsize.kernels.compositional.pieces import HashedPointers, StoredPointers
from outsize.ranks.failures import failing_together
from outsize.spec import Budget, TableSpec
from outsize.tables.block_clustering import BlockClustering
from outsize.tables.columns import (
    columns_of,
    composed_columns,
    gather_columns,
    gather_pieces,
    stack_columns,
    unstack_columns,
)
from outsize.tables.pointer_table import PointerTable
from outsize.tables.pointers import (
    hashed_pointers,
    num_addressable,
    pack,
    pointer_type,
    unpack,
)
from outsize.tables.reclustering import (
    ITERATIONS,
    PointsOf,
    fit_codes,
    nearest_pointers,
    plan_recluster,
    report_ids,
    squared_errors,
)
from outsize.tables.sizing import Cost, hash_bytes, largest_size
from outsize.tables.weights import fresh_weight

_ALL_CODES = 2  # in the flags of `meaning`, beside 1 for shared codes


class CCETable(PointerTable):
    """Ids share codes that clustering finds; see the module docstring.

    Args:
        spec: The table.
        num_buckets: Rows of codes and helper together, half each; 2k in the paper.
        columns: Columns per vector, c in the paper; 4 by default.
        shared: Whether all columns choose from one pool of codes; by default if they are equally
            wide. `False` is the paper's algorithm.
        papers_init: Draw codes and helper uniformly from ± dim^-½ as in the paper, instead of
            scaling them so that their sums have the scale of the spec.
        pointers_on: "device", or "cpu" to keep the pointers in main memory when the table moves to
            a GPU; a look-up then waits for them to be copied.
        seed: Seed of the hashes, the initial codes and the clusterings.
    """

    can_recluster = True
    can_probe = True
    pointer_buffers = ("pointers", "helper_hashes")

    def __init__(
        self,
        spec: TableSpec,
        *,
        num_buckets: int,
        columns: int | None = None,
        shared: bool | None = None,
        papers_init: bool = False,
        pointers_on: Literal["device", "cpu"] = "device",
        seed: int = 0,
    ) -> None:
        super().__init__(spec)
        columns = columns_of(spec, columns)
        if num_buckets < 2:
            raise ConfigError(
                f"table {spec.name!r}: a cce table needs 2 rows or more, one of codes and one of "
                f"the helper, but got {num_buckets}"
            )
        self.shared = _is_shared(spec, columns, shared)
        self.columns = columns
        self.seed = seed
        self.pointers_on = pointers_on
        self.num_main, self.num_helper = halves = _halves(num_buckets)
        self._halves = halves
        std = (3 * spec.dim) ** -0.5 if papers_init else spec.init.std_for(spec.dim) / 2**0.5
        self.weight = fresh_weight(spec, num_buckets, spec.dim, std, seed)
        first = draw_hashes(columns, derive_seed(seed, "first pointers"))
        self.register_buffer("pointers", hashed_pointers(spec.num_rows, first, self.num_codes))
        self.register_buffer("helper_hashes", self._draw_helper(0))
        self.register_buffer("num_clusterings", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("meaning", torch.tensor([columns, int(self.shared)]))
        self.pointers: Tensor
        self.helper_hashes: Tensor
        self.num_clusterings: Tensor
        self.meaning: Tensor
        self.renew_version()

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> CCETable:
        columns = columns_of(spec, options.get("columns"))
        pool = columns if _is_shared(spec, columns, options.get("shared")) else 1

        def cost(num_buckets: int) -> Cost:
            pointer = pointer_type(_halves(num_buckets)[0] * pool)
            index = spec.num_rows * columns * pointer.itemsize + hash_bytes(columns) + 24
            return Cost(num_buckets * spec.dim, index)

        size = largest_size("cce", spec, budget, cost, least=2)
        return cls(spec, num_buckets=size, seed=seed, **options)

    @property
    def num_codes(self) -> int:
        """Number of codes that a pointer chooses from."""
        return self.num_main * self._pool

    @property
    def _pool(self) -> int:
        """Number of columns that share a pool of codes."""
        return self.columns if self.shared else 1

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {
            "num_buckets": sum(self._halves),
            "columns": self.columns,
            "shared": self.shared,
            "seed": self.seed,
        }

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        sources: list[StoredPointers | HashedPointers] = [StoredPointers(self.pointers)]
        if self.num_helper:
            sources.append(HashedPointers(self.helper_hashes, self.num_helper * self._pool))
        vectors = self._composed(ids, sources)
        if vectors is not None:
            return vectors
        helper = self._helper_of(ids) if self.num_helper else None
        return self._vectors(self.pointers_of(ids), helper)

    def pointers_of(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, "n columns"]:
        """The codes that ids point to, h in the paper."""
        return unpack(self.pointers[ids.to(self.pointers.device)]).to(ids.device)

    @property
    def num_pointers(self) -> int:
        """Pointers per id, into the codes and into the helper, if there is one."""
        return (2 if self.num_helper else 1) * self.columns

    def copy_pointers(self, ids: Int64[Tensor, " n"]) -> Integer[Tensor, "n pointers"]:  # noqa: D102
        found = self.pointers_of(ids)
        if self.num_helper:
            found = torch.cat([found, self._helper_of(ids)], dim=1)
        return pack(found, self.pointers.dtype)

    def vectors_of(self, packed: Integer[Tensor, "n pointers"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        firsts = range(0, self.num_pointers, self.columns)
        sources = [StoredPointers(packed, first, self.columns) for first in firsts]
        lines = torch.arange(packed.shape[0], device=packed.device)
        vectors = self._composed(lines, sources)
        if vectors is not None:
            return vectors
        main, *helper = unpack(packed).split(self.columns, dim=1)
        return self._vectors(main, helper[0] if helper else None)

    def _composed(
        self, ids: Tensor, sources: Sequence[StoredPointers | HashedPointers]
    ) -> Tensor | None:
        first_rows = (0, self.num_codes)[: len(sources)]
        return composed_columns(self.weight, ids, sources, first_rows, pooled=self.shared)

    def recluster(
        self,
        optimizer: Optimizer | None = None,
        counts: Int64[Tensor, " num_rows"] | None = None,
        *,
        vectors: Float[Tensor, "num_rows dim"] | None = None,
        helper: bool = True,
        iterations: int = ITERATIONS,
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
            batch_rows: Ids per batch of the assignment; the result does not depend on it.
            progress: Show a progress bar on standard error.
        """
        return self.plan_recluster(
            optimizer,
            counts,
            vectors=vectors,
            helper=helper,
            iterations=iterations,
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
            return self._clustered(points_of, counts, num_main, iterations, batch_rows, progress)

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
    ) -> BlockClustering:
        """Begin a clustering of vectors that arrive block by block, see `BlockClustering`.

        Args:
            counts: How often each id occurs; needed by the first rank only.
            blocks: Number of blocks that ids are divided into.
            helper: As in `recluster`.
        """
        return BlockClustering(
            self.spec,
            blocks,
            self.num_main_after(helper) * self._pool,
            self.pointers,
            self._pieces_of,
            counts=counts,
            device=self.weight.device,
            seed=self._clustering_seed(),
            points_per_id=self._pool,
        )

    def plan_blocks(
        self, clustering: BlockClustering, optimizer: Optimizer | None = None
    ) -> PlannedRecluster:
        """Plan the reclustering that `cluster_blocks` began, once every block was added."""
        num_main = clustering.num_codes // self._pool

        def rewrite() -> dict[str, Tensor]:
            codes, pointers = clustering.result(self._points_of)
            return self._rewritten(codes, pointers, num_main)

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
        )

    def _clustered(
        self,
        points_of: PointsOf,
        counts: Int64[Tensor, " num_rows"] | None,
        num_main: int,
        iterations: int,
        batch_rows: int,
        progress: bool,
    ) -> dict[str, Tensor]:
        """The parameters and buffers of this table after clustering the points of all ids."""
        fitted = fit_codes(
            self.spec,
            points_of,
            num_main * self._pool,
            counts,
            device=self.weight.device,
            seed=self._clustering_seed(),
            iterations=iterations,
            progress=progress,
            points_per_id=self._pool,
        )
        pointers = nearest_pointers(points_of, fitted.codes, self.pointers, batch_rows)
        return self._rewritten(fitted.codes, pointers, num_main)

    def _rewritten(
        self,
        codes: Float[Tensor, "groups codes width"],
        pointers: Integer[Tensor, "num_rows columns"],
        num_main: int,
    ) -> dict[str, Tensor]:
        """The parameters and buffers of this table with new codes and pointers."""
        number = self.num_clusterings + 1
        flags = int(self.shared) + (0 if num_main == self._halves[0] else _ALL_CODES)
        return {
            "weight": self._weight_of(codes, num_main),
            "pointers": pointers,
            "helper_hashes": self._draw_helper(int(number)).to(self.helper_hashes.device),
            "num_clusterings": number,
            "meaning": torch.tensor([self.columns, flags], device=self.meaning.device),
        }

    def _vectors_after(
        self, changed: Mapping[str, Tensor], ids: Int64[Tensor, " n"]
    ) -> Float[Tensor, "n dim"]:
        """The vectors of ids after a clustering: codes alone, since its helper is zero."""
        pointers = changed["pointers"]
        main = unpack(pointers[ids.to(pointers.device)]).to(ids.device)
        return self._gather(changed["weight"], main)

    def _clustering_seed(self) -> int:
        return derive_seed(self.seed, "recluster", int(self.num_clusterings))

    def num_main_after(self, helper: bool) -> int:
        """Rows of codes after a clustering with a helper, or without one."""
        if helper:
            return self._halves[0]
        return min(sum(self._halves), num_addressable(self.pointers.dtype) // self._pool)

    def renew_version(self) -> None:
        """Compute the version of the current pointers, and which rows are codes."""
        if not self.meaning.is_meta:
            all_codes = bool(int(self.meaning[1]) & _ALL_CODES)
            self.num_main = self.num_main_after(helper=not all_codes)
            self.num_helper = sum(self._halves) - self.num_main
        super().renew_version()

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

    def _vectors(
        self, main: Int64[Tensor, "n columns"], helper: Int64[Tensor, "n columns"] | None
    ) -> Float[Tensor, "n dim"]:
        vectors = self._gather(self.weight, main)
        if helper is None:
            return vectors
        return vectors + self._gather(self.weight, helper + self.num_codes)

    def _gather(
        self, weight: Float[Tensor, "rows dim"], pointers: Int64[Tensor, "n columns"]
    ) -> Float[Tensor, "n dim"]:
        return (gather_pieces if self.shared else gather_columns)(weight, pointers)

    def _helper_of(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, "n columns"]:
        """The helper's rows for ids, h' in the paper; computed, not stored."""
        return hash_ids(ids, self.helper_hashes, self.num_helper * self._pool)

    def _draw_helper(self, number: int) -> Int64[Tensor, "columns 9"]:
        return draw_hashes(self.columns, derive_seed(self.seed, "helper", number))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any
    ) -> None:
        """Refuse pointers of other columns or `shared`, which torch would load silently."""
        saved = state_dict.get(f"{prefix}meaning")
        if (
            saved is not None
            and not saved.is_meta
            and _columns_and_shared(saved)
            != (
                self.columns,
                self.shared,
            )
        ):
            columns, shared = _columns_and_shared(saved)
            raise ConfigError(
                f"table {self.spec.name!r}: its saved pointers are of {columns} columns with "
                f"shared={shared}, but the table was built with {self.columns} and "
                f"shared={self.shared}: build it as it was saved"
            )
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)
        if self.pointers_on == "cpu" and not self.pointers.is_meta:
            self.pointers = self.pointers.cpu()  # with `assign=True` they may be on a GPU

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CCETable:
        def moved(tensor: Tensor) -> Tensor:
            if tensor is not self.pointers or self.pointers_on == "device":
                return fn(tensor)
            if not tensor.is_meta:
                return tensor
            filled = fn(tensor)  # `to_empty`
            return filled if filled.is_meta else torch.empty_like(filled, device="cpu")

        super()._apply(moved, recurse)
        return self


def _columns_and_shared(meaning: Int64[Tensor, "2"]) -> tuple[int, bool]:
    columns, flags = meaning.tolist()
    return columns, bool(flags & 1)


def _is_shared(spec: TableSpec, columns: int, wanted: bool | None) -> bool:
    even = spec.dim % columns == 0
    if wanted and not even:
        raise ConfigError(
            f"table {spec.name!r}: columns share codes where they are equally wide, but a dim of "
            f"{spec.dim} has no {columns} equal columns: set shared=False, or other columns"
        )
    return even if wanted is None else wanted


def _halves(num_buckets: int) -> tuple[int, int]:
    """The number of rows of the codes and of the helper."""
    return num_buckets - num_buckets // 2, num_buckets // 2
