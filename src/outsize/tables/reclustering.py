"""Shared parts of reclustering: sampling ids, fitting codes, new pointers, plan and report."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor
from torch.func import functional_call
from torch.optim import Optimizer

from outsize.clustering import CHUNK_POINTS, draw_distinct, kmeans, nearest
from outsize.contracts import EmbeddingTable, PlannedRecluster, ReclusterReport
from outsize.contracts.fitting import require_counts
from outsize.errors import DataError, NonFiniteError, ReclusterError
from outsize.hashing import derive_seed
from outsize.ranks.collectives import broadcast_first, value_of_first
from outsize.ranks.failures import failing_together
from outsize.ranks.first_rank import on_first_rank
from outsize.spec import TableSpec
from outsize.tables.diagnosis import diagnose_pointers, spread_ids
from outsize.tables.moments import require_resettable, reset_moments
from outsize.tables.pointer_table import PointerTable
from outsize.tables.pointers import pack, unpack

POINTS_PER_CLUSTER = 256  # more do not help, according to the paper and to faiss
ITERATIONS = 50
_REPORT_IDS = 1 << 16
PointsOf = Callable[[Int64[Tensor, " n"]], Float[Tensor, "groups points width"]]


def ids_to_cluster(
    spec: TableSpec, counts: Int64[Tensor, " num_rows"] | None, most: int, seed: int
) -> tuple[Int64[Tensor, " n"], Float[Tensor, " n"]]:
    """A sample of at most `most` ids, with their weights.

    Without counts, each id has weight 1. With counts, an id's weight is its count, and ids that
    never occur are left out. If there are more than `most` ids, frequent ids are kept and rare ones
    are sampled, with weights that keep sums unbiased.

    Args:
        spec: The table.
        counts: How often each id occurs, if known.
        most: Maximum number of ids.
        seed: Seed of the sample.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "sample"))
    if counts is None:
        if spec.num_rows <= most:
            return torch.arange(spec.num_rows), torch.ones(spec.num_rows)
        ids, weights = draw_distinct(torch.ones(1).expand(spec.num_rows), most, generator)
        return ids, weights.float()
    require_occurring(spec, counts)
    counts = counts.cpu()
    num_seen = int(torch.count_nonzero(counts))
    if num_seen <= most:
        ids = counts.nonzero().flatten()
        return ids, counts[ids].float()
    ids, weights = draw_distinct(counts, most, generator)
    return ids, weights.float()


def require_occurring(spec: TableSpec, counts: Int64[Tensor, " num_rows"]) -> None:
    """Raise a `DataError` unless counts are one number >= 0 per id, and not all 0."""
    require_counts(spec, counts)
    if not bool(counts.any()):
        raise DataError(f"table {spec.name!r}: every count is 0: there is nothing to cluster")


class Fitted(NamedTuple):
    """Codes, and the ids they were fitted on.

    Attributes:
        codes: The centroids of each group of points.
        ids: The ids, on the device of the codes.
        weights: Their weights.
    """

    codes: Float[Tensor, "groups codes width"]
    ids: Int64[Tensor, " n"]
    weights: Float[Tensor, " n"]


@torch.no_grad()
def fit_codes(
    spec: TableSpec,
    points_of: PointsOf,
    num_codes: int,
    counts: Int64[Tensor, " num_rows"] | None,
    *,
    device: torch.device,
    seed: int,
    iterations: int,
    progress: bool,
    points_per_id: int = 1,
    tolerance: float = 0.0,
) -> Fitted:
    """Cluster the points of a sample of ids, with at most 256 points per code.

    Args:
        spec: The table.
        points_of: Returns the points of ids; within a group, those of one id are adjacent.
        num_codes: Codes per group.
        counts: How often each id occurs, if known.
        device: The device of the points.
        seed: Seed of the sample and of k-means.
        iterations: Maximum number of k-means iterations.
        progress: Show a progress bar on standard error.
        points_per_id: Points per id in each group.
        tolerance: As in `outsize.clustering.kmeans`.
    """
    most = -(-POINTS_PER_CLUSTER * num_codes // points_per_id)
    ids, weights = ids_to_cluster(spec, counts, most, seed)
    ids, weights = ids.to(device), weights.to(device)
    clustering = kmeans(
        points_of(ids),
        num_codes,
        weights=weights.repeat_interleave(points_per_id),
        iterations=iterations,
        seed=seed,
        max_points_per_cluster=POINTS_PER_CLUSTER,
        progress=progress,
        tolerance=tolerance,
    )
    return Fitted(clustering.centroids, ids, weights)


@torch.no_grad()
def nearest_pointers(
    points_of: PointsOf,
    centroids: Float[Tensor, "groups codes width"],
    like: Integer[Tensor, "num_rows columns"],
    batch_rows: int = CHUNK_POINTS,
) -> Integer[Tensor, "num_rows columns"]:
    """New pointers of all ids: the centroids nearest to the points of each id.

    Batches of ids are cut at multiples of `CHUNK_POINTS`, so the result does not depend on the
    batch size.

    Args:
        points_of: Returns the points of ids; within a group, those of one id are adjacent.
        centroids: The codes that pointers choose from.
        like: The old pointers; the new ones have their shape, type and device.
        batch_rows: Approximate number of ids per batch.
    """
    step = -(-max(1, batch_rows) // CHUNK_POINTS) * CHUNK_POINTS
    num_rows, columns = like.shape
    pointers = torch.empty_like(like)
    for first in range(0, num_rows, step):
        ids = torch.arange(first, min(first + step, num_rows), device=centroids.device)
        found = nearest(points_of(ids), centroids).view(centroids.shape[0], ids.numel(), -1)
        found = found.transpose(0, 1).reshape(ids.numel(), columns)
        pointers[first : first + step] = pack(found, like.dtype).to(like.device)
    return pointers


@torch.no_grad()
def plan_recluster(
    table: EmbeddingTable,
    weight: Float[Tensor, "rows dim"],
    rewrite: Callable[[], dict[str, Tensor]],
    num_codes: int,
    optimizer: Optimizer | None,
    pooled: bool = False,
    errors: Callable[[dict[str, Tensor]], tuple[float, float]] | None = None,
    pointers: Callable[[dict[str, Tensor]], Integer[Tensor, "lines columns"]] | None = None,
    pointer_bits: int | None = None,
) -> PlannedRecluster:
    """Plan a reclustering on the first rank, without changing the table; call it on all ranks.

    Args:
        table: The table; its buffer "pointers" holds its pointers.
        weight: Its parameter, which is rewritten completely.
        rewrite: Computes the new values of parameters and buffers by name, and changes nothing.
        num_codes: Number of codes that a pointer chooses from.
        optimizer: The optimizer that trains `weight`; its state for it is reset.
        pooled: Whether all columns choose from one pool of codes.
        errors: The `mse` and `variance` of the report, given the new values; by default those of
            the vectors that look-ups return before and after.
        pointers: All pointers in the new values; by default the buffer "pointers".
        pointer_bits: Bits of a stored pointer; by default those of its type.
    """
    with failing_together(ReclusterError):
        if optimizer is not None:
            require_resettable(optimizer, table, weight)
        _require_finite(table)

    def plan() -> tuple[dict[str, Tensor], ReclusterReport]:
        started = time.perf_counter()
        changed = rewrite()
        mse, variance = _errors(table, changed) if errors is None else errors(changed)
        found = changed["pointers"] if pointers is None else pointers(changed)
        diagnosis = diagnose_pointers(found, num_codes)
        return changed, ReclusterReport(
            mse=mse,
            variance=variance,
            num_clusters=num_codes,
            num_empty=num_unused(found, num_codes, pooled),
            entropies=diagnosis.entropies,
            warning=diagnosis.warning,
            seconds=time.perf_counter() - started,
            pointer_bits=found.shape[1] * (pointer_bits or 8 * found.element_size()),
            entropy_bits=diagnosis.column_bits,
        )

    planned = on_first_rank(plan)
    mine = None if planned is None else planned[1].as_metrics()
    report = ReclusterReport.from_metrics(value_of_first(mine))
    # Sorted, so that all ranks broadcast the tensors in the same order.
    names = value_of_first(None if planned is None else sorted(planned[0]))

    @torch.no_grad()
    def write() -> None:
        tensors = {**dict(table.named_parameters()), **dict(table.named_buffers())}
        if planned is not None:
            for name, values in planned[0].items():
                tensors[name].copy_(values)
        broadcast_first([tensors[name].detach() for name in names])
        if optimizer is not None:
            reset_moments(optimizer, weight)
        if isinstance(table, PointerTable):
            table.renew_version()

    return PlannedRecluster(table.spec.name, report, write)


def _errors(table: EmbeddingTable, changed: dict[str, Tensor]) -> tuple[float, float]:
    ids = report_ids(table.spec, changed["weight"].device)
    return squared_errors(table.lookup(ids), functional_call(table, changed, (ids,)))


def report_ids(spec: TableSpec, device: torch.device) -> Int64[Tensor, " n"]:
    """The ids whose vectors a report compares: all, or many that are equally spaced."""
    return spread_ids(spec.num_rows, _REPORT_IDS).to(device)


def squared_errors(
    before: Float[Tensor, "n dim"], after: Float[Tensor, "n dim"]
) -> tuple[float, float]:
    """Mean squared distance between vectors before and after, and of those before to their mean."""
    before, after = before.double(), after.double()
    mse = float((after - before).square().sum(dim=1).mean())
    return mse, float((before - before.mean(dim=0)).square().sum(dim=1).mean())


def _require_finite(table: EmbeddingTable) -> None:
    """Raise a `NonFiniteError` if a parameter of the table holds NaN or infinity."""
    for name, weight in table.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise NonFiniteError(
                f"table {table.spec.name!r}: its {name} holds NaN or infinity and cannot be "
                "clustered: lower the learning rate, or clip gradients"
            )


def num_unused(pointers: Integer[Tensor, "n columns"], num_codes: int, pooled: bool) -> int:
    """Number of codes that no id points to, in one pool or summed over columns."""
    used = torch.zeros(pointers.shape[1], num_codes, dtype=torch.bool, device=pointers.device)
    for piece in pointers.split(CHUNK_POINTS):
        for column, flags in zip(unpack(piece).unbind(1), used, strict=True):
            flags[column] = True
    if pooled:
        used = used.any(dim=0)
    return used.numel() - int(used.sum())
