"""The cost of rows of which each rank has a replica: ranks send each other their gradients."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.contracts import RowUpdate
from outsize.plan.compact_ids import CompactIds
from outsize.plan.reads import StepReads
from outsize.plan.reference import fill_cache
from outsize.spec import TableSpec
from outsize.stores import LocalStore
from outsize.stores.merging import average_over_workers
from outsize.training.store_config import StoreConfig

_ROUNDS = 4  # numbers and content of ids, and of gradients
_BYTES_PER_NUMBER, _BYTES_PER_ID = 4, 8


@dataclass(frozen=True)
class RowCost:
    """What rows cost a rank in a step.

    Attributes:
        rows_s: Processor time of its reads and updates.
        row_bytes: Bytes that it sends.
        row_rounds: Rounds of these messages.
        num_ranks: Number of ranks that this is for.
    """

    rows_s: float
    row_bytes: float
    row_rounds: float
    num_ranks: int = 1

    def of_ranks(self, num_ranks: int) -> RowCost:
        """The cost of more replicas: that of one update each, and of messages to more ranks."""
        if num_ranks == self.num_ranks:
            return self
        factor = num_ranks / self.num_ranks
        sent = self.row_bytes * (num_ranks - 1) / (self.num_ranks - 1)
        return RowCost(self.rows_s * factor, sent, self.row_rounds, num_ranks)


def replicas(config: StoreConfig, reads: Sequence[StepReads], share: float = 1.0) -> RowCost:
    """Read and update one replica, as all ranks do with theirs.

    Args:
        config: The store.
        reads: The reads of each step and rank.
        share: The share of all rows that they are.
    """
    num_ranks = len(reads[0])
    compact = CompactIds(reads, 1, 0, None)
    store = LocalStore([TableSpec("rows", compact.num_rows, config.dim)])
    optimizer = config.build_row_optimizer(store)
    assert optimizer is not None
    noise = torch.randn(compact.largest, config.dim, generator=torch.Generator().manual_seed(0))
    bytes_per_row = config.dim * _BYTES_PER_NUMBER + _BYTES_PER_ID
    seconds, sent = [], []
    for step in reads:
        read = [[compact(ids) for ids in parts] for parts in step]
        updates = [_update(parts, noise) for parts in read]
        longest = max(update.ids.shape[0] for update in updates)
        sent.append((num_ranks - 1) * longest * bytes_per_row)
        fill_cache()
        started = time.thread_time()
        for ids in read[0]:
            store.exchange(None, ids)
        if num_ranks > 1:
            mean = average_over_workers(updates, num_ranks, store.layout, None)
            store.submit(replace(mean, ticks=torch.ones_like(mean.ids)))
        else:
            store.submit(updates[0])
        seconds.append(time.thread_time() - started)
    return RowCost(
        statistics.median(seconds) / share,
        statistics.fmean(sent) / share,
        _ROUNDS if num_ranks > 1 else 0,
        num_ranks,
    )


def _update(parts: Sequence[Int64[Tensor, " _"]], noise: Float[Tensor, "n dim"]) -> RowUpdate:
    ids = parts[0] if len(parts) == 1 else torch.cat(list(parts)).unique()
    return RowUpdate(ids, (noise[: ids.shape[0]],), torch.ones_like(ids))
