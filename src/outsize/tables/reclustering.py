"""What tables that recluster share: the ids clustered on, pointers for all, moments, the report."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor
from torch.optim import Optimizer

from outsize.clustering import CHUNK_POINTS, draw_distinct, kmeans, nearest
from outsize.collectives import broadcast_first, rank
from outsize.contracts import EmbeddingTable, ReclusterReport
from outsize.errors import DataError
from outsize.hashing import derive_seed
from outsize.spec import TableSpec
from outsize.tables.diagnosis import diagnose_pointers, spread_ids
from outsize.tables.pointers import pack, unpack

_POINTS_PER_CLUSTER = 256  # more bring nothing, by the text and by faiss's advice
ITERATIONS = 50
_REPORT_IDS = 1 << 16
PointsOf = Callable[[Int64[Tensor, " n"]], Float[Tensor, "groups points width"]]


def ids_to_cluster(
    spec: TableSpec, counts: Int64[Tensor, " num_rows"] | None, most: int, seed: int
) -> tuple[Int64[Tensor, " n"], Float[Tensor, " n"]]:
    """At most `most` ids that stand for all, and the weight of each.

    Without counts an id weighs 1. With counts it weighs as often as it occurs, and ids that never
    occur are left out. Where not all fit, frequent ids are kept and rare ones drawn, and the
    weights make up for it.

    Args:
        spec: The table.
        counts: How often each id occurs, where that is known.
        most: The most ids.
        seed: Seed of the draw.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "sample"))
    if counts is None:
        if spec.num_rows <= most:
            return torch.arange(spec.num_rows), torch.ones(spec.num_rows)
        ids, weights = draw_distinct(torch.ones(1).expand(spec.num_rows), most, generator)
        return ids, weights.float()
    counts = counts.cpu()
    if counts.shape != (spec.num_rows,) or bool((counts < 0).any()):
        raise DataError(
            f"table {spec.name!r}: counts must be {spec.num_rows:,} numbers >= 0, one for each "
            f"id, but have the shape {tuple(counts.shape)} and the least is {counts.min()}"
        )
    num_seen = int(torch.count_nonzero(counts))
    if num_seen == 0:
        raise DataError(f"table {spec.name!r}: every count is 0: there is nothing to cluster")
    if num_seen <= most:
        ids = counts.nonzero().flatten()
        return ids, counts[ids].float()
    ids, weights = draw_distinct(counts, most, generator)
    return ids, weights.float()


class Fitted(NamedTuple):
    """Codes, and the ids they were fitted on.

    Attributes:
        codes: Centroids of each group of points.
        ids: The ids, on the device of the codes.
        weights: What each of them weighed.
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
    points_an_id: int = 1,
) -> Fitted:
    """Cluster the points of a sample of ids, at most 256 a code.

    Args:
        spec: The table.
        points_of: The points of ids, those of one id side by side within a group.
        num_codes: Codes of each group.
        counts: How often each id occurs, where that is known.
        device: Where the points are made.
        seed: Seed of the sample and of k-means.
        iterations: Of k-means, at most.
        progress: Show a bar on standard error.
        points_an_id: Points of an id in each group.
    """
    most = -(-_POINTS_PER_CLUSTER * num_codes // points_an_id)
    ids, weights = ids_to_cluster(spec, counts, most, seed)
    ids, weights = ids.to(device), weights.to(device)
    clustering = kmeans(
        points_of(ids),
        num_codes,
        weights=weights.repeat_interleave(points_an_id),
        iterations=iterations,
        seed=seed,
        max_points_per_cluster=_POINTS_PER_CLUSTER,
        progress=progress,
    )
    return Fitted(clustering.centroids, ids, weights)


@torch.no_grad()
def nearest_pointers(
    points_of: PointsOf,
    centroids: Float[Tensor, "groups codes width"],
    like: Integer[Tensor, "num_rows columns"],
    batch_rows: int = CHUNK_POINTS,
) -> Integer[Tensor, "num_rows columns"]:
    """New pointers for all ids: the centroids nearest to the points of each.

    Ids are taken in batches cut at multiples of `CHUNK_POINTS`, so that the result does not
    depend on their size.

    Args:
        points_of: The points of ids, those of one id side by side within a group.
        centroids: Where pointers can point to.
        like: The old pointers; the new ones have their shape, type and device.
        batch_rows: About how many ids to take at once.
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
def run_recluster(
    table: EmbeddingTable,
    weight: Float[Tensor, "rows dim"],
    state: Sequence[Tensor],
    num_codes: int,
    optimizer: Optimizer | None,
    rewrite: Callable[[], None],
    pooled: bool = False,
) -> ReclusterReport:
    """Recluster a table on the first rank, give every rank the result, and report.

    Args:
        table: Which; the first tensor of `state` holds its pointers.
        weight: Its parameter, all of which is rewritten.
        state: Its buffers that change.
        num_codes: Codes a pointer chooses from.
        optimizer: What trains `weight`; it forgets what it knew.
        rewrite: Changes weight and state in place.
        pooled: Whether all columns choose from one pool of codes.
    """
    started = time.perf_counter()
    if optimizer is not None:
        require_trained_by(optimizer, table, weight)
    ids = spread_ids(table.spec.num_rows, _REPORT_IDS).to(weight.device)
    before = table.lookup(ids).double()
    if rank() == 0:
        rewrite()
    broadcast_first([weight.detach(), *state])
    if optimizer is not None:
        reset_moments(optimizer, weight)
    after = table.lookup(ids).double()
    diagnosis = diagnose_pointers(state[0], num_codes)
    report = ReclusterReport(
        mse=float((after - before).square().sum(dim=1).mean()),
        variance=float((before - before.mean(dim=0)).square().sum(dim=1).mean()),
        num_clusters=num_codes,
        num_empty=num_unused(state[0], num_codes, pooled),
        entropies=diagnosis.entropies,
        warning=diagnosis.warning,
        seconds=time.perf_counter() - started,
    )
    if report.warning:
        warnings.warn(f"table {table.spec.name!r}: {report.warning}", stacklevel=3)
    return report


def num_unused(pointers: Integer[Tensor, "n columns"], num_codes: int, pooled: bool) -> int:
    """Codes that no id points to: of one pool, or of every column's own."""
    used = torch.zeros(pointers.shape[1], num_codes, dtype=torch.bool, device=pointers.device)
    for piece in pointers.split(CHUNK_POINTS):
        for column, flags in zip(unpack(piece).unbind(1), used, strict=True):
            flags[column] = True
    if pooled:
        used = used.any(dim=0)
    return used.numel() - int(used.sum())


def require_trained_by(optimizer: Optimizer, table: EmbeddingTable, weight: Tensor) -> None:
    """Refuse an optimizer of other parameters."""
    if not any(weight is other for g in optimizer.param_groups for other in g["params"]):
        raise DataError(
            f"table {table.spec.name!r}: the optimizer given to recluster does not train this "
            "table's parameters: give the one that does"
        )


def reset_moments(optimizer: Optimizer, parameter: Tensor) -> None:
    """Make an optimizer forget what it knows of a parameter that was rewritten whole.

    Tensors of its state go back to what they were before the first step, and so does its count
    of steps, on which Adam's bias correction depends.
    """
    first_sum = optimizer.defaults.get("initial_accumulator_value", 0.0)
    state = optimizer.state.get(parameter, {})
    for name, value in state.items():
        if isinstance(value, Tensor):
            value.fill_(first_sum if name == "sum" else 0.0)
        elif name == "step":
            state[name] = 0
