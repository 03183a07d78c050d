"""Bytes on the wire and hit rate of a run, predicted from a sample of its batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.contracts.messages import BYTE_KINDS
from outsize.plan.reads import StepReads, keep_share, record_reads, recording_store
from outsize.plan.rowless import RecordedStore
from outsize.plan.segments import Segment, flush_steps, run_totals, segments_of
from outsize.plan.simulation import COUNTED, Simulated, simulate
from outsize.training.build import build_dense_optimizer
from outsize.training.config import RunConfig
from outsize.training.store_config import StoreConfig
from outsize.training.tasks import Task

SAMPLE_STEPS = 500
MOST_RANKS = 32  # as threads, which send each other messages
_MOST_READS = 12_000_000  # row reads of a simulation: some ten seconds
_MOST_SLOTS = 4_000_000  # of all ranks together
_LEAST_READS = 400  # per rank and step; with fewer, the padding of messages would show
_NARROW_IDS = (1 << 31) - 1
_ROUNDS, _CACHED_ROUNDS = 3, 4  # sizes, requests and rows; of a cache, flags of stale rows besides


@dataclass(frozen=True)
class Traffic:
    """What the rows of a run cost between ranks.

    Attributes:
        sent_bytes: Bytes sent in the whole run by all ranks, by kind, as a run logs them.
        reads: Rows read by training steps, likewise.
        local: How many of them the reading rank owned.
        hits: How many of them a valid copy answered.
        pushes: Rows pushed to their owners.
        evictions: Copies that were evicted.
        num_ranks: Number of ranks.
        num_steps: Steps of the run.
        simulated_steps: How many of them were simulated.
        share_of_rows: The share of rows that the simulation had.
        cache_bytes: Bytes of the cache of each rank; 0 without one.
        cache_state_bytes: Bytes of all caches in a checkpoint.
        rows_s: Processor time per step that a rank of this machine spends on rows.
        simulated_ranks: The numbers of ranks that were simulated.
        num_rounds: Rounds of messages per step.
        busiest: Requests to the busiest owner of rows, in multiples of the mean.
    """

    sent_bytes: dict[str, int]
    reads: int
    local: int
    hits: int
    pushes: int
    evictions: int
    num_ranks: int
    num_steps: int
    simulated_steps: int
    share_of_rows: float
    cache_bytes: list[int]
    cache_state_bytes: int
    rows_s: float
    simulated_ranks: list[int]
    num_rounds: float = 0.0
    busiest: float = 1.0

    @property
    def hit_rate(self) -> float:
        """The share of rows of other ranks that a valid copy answered."""
        remote = self.reads - self.local
        return self.hits / remote if remote else 0.0

    @property
    def bytes_per_step(self) -> dict[str, float]:
        """Bytes that a rank sends per step, by kind, on average."""
        steps = self.num_ranks * self.num_steps
        return {kind: size / steps for kind, size in self.sent_bytes.items()}


class Sample:
    """The reads of a run's first steps, for stores and caches of any size over them.

    Args:
        config: The run.
        task: Its task, over a `RowlessStore`; or over a `RecordedStore`, to be trained meanwhile.
        num_ranks: Number of ranks.
        num_steps: Steps of the run.
        most_steps: Steps to record at most.
        steps_per_epoch: Steps of one pass over the data; by default those of so many ranks.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task[Any],
        num_ranks: int,
        num_steps: int,
        most_steps: int = SAMPLE_STEPS,
        steps_per_epoch: int | None = None,
    ) -> None:
        self.num_ranks, self.num_steps = num_ranks, num_steps
        store = recording_store(task)
        self.num_rows = store.layout.num_rows
        self._dense = None
        if isinstance(store, RecordedStore):
            self._dense = build_dense_optimizer(config.optimizer, task.trained)
        per_epoch = steps_per_epoch or task.num_batches(num_ranks)
        flushes = flush_steps(config, num_steps, per_epoch)
        self.segments: list[Segment] = segments_of(flushes, most_steps)
        self.simulated_steps = sum(segment.simulated for segment in self.segments)
        self.share = self._share(task, config)
        keep = keep_share(self.share)
        self.reads: list[StepReads] = record_reads(
            task, num_ranks, self.simulated_steps, keep, self._dense
        )

    def traffic(self, config: StoreConfig, num_ranks: int | None = None) -> Traffic:
        """The traffic of a store over the sampled reads, extrapolated to all steps of the run.

        Args:
            config: The store.
            num_ranks: Simulate the first of the ranks only; by default all of them.
        """
        num_ranks = num_ranks or self.num_ranks
        reads = [step[:num_ranks] for step in self.reads]
        num_slots = slots_of(config, self.num_rows)
        shared_slots = 0 if not num_slots else max(1, round(num_slots * self.share))
        ends = np.cumsum([segment.simulated for segment in self.segments if segment.simulated])
        num_rows = self.num_rows if self.share == 1 else None
        found = simulate(config, reads, shared_slots, [int(end) for end in ends], num_rows)
        traffic = self._traffic(found, num_ranks, num_slots, shared_slots)
        parts = sum(len(step[0]) for step in reads) / max(1, len(reads))
        return replace(traffic, num_rounds=parts * (_CACHED_ROUNDS if num_slots else _ROUNDS))

    def _traffic(
        self, found: Simulated, num_ranks: int, num_slots: int, shared_slots: int
    ) -> Traffic:
        by_rank = run_totals(self.segments, found.steps, found.flushes) / self.share
        total = dict(zip(COUNTED, _rounded(by_rank.sum(axis=0)), strict=True))
        if self.num_rows // num_ranks > _NARROW_IDS:
            total["ids"] *= 2  # positions in a shard take eight bytes
        scale = num_slots / shared_slots if shared_slots else 1.0
        return Traffic(
            sent_bytes={kind: total.pop(kind) for kind in BYTE_KINDS},
            **total,
            num_ranks=num_ranks,
            num_steps=self.num_steps,
            simulated_steps=self.simulated_steps,
            share_of_rows=self.share,
            cache_bytes=[round(size * scale) for size in found.cache_bytes],
            cache_state_bytes=round(sum(found.state_bytes) * scale),
            rows_s=found.rows_s / self.share,
            simulated_ranks=[num_ranks],
        )

    def _share(self, task: Task[Any], config: RunConfig) -> float:
        """The share of rows to simulate, so that it takes seconds and little memory."""
        (first,) = record_reads(task, self.num_ranks, 1, keep_share(1.0))
        num_reads = max(1, sum(ids.shape[0] for parts in first for ids in parts))
        share = min(1.0, _MOST_READS / (num_reads * self.simulated_steps))
        if isinstance(config.embeddings, StoreConfig):
            slots = slots_of(config.embeddings, self.num_rows) * self.num_ranks
            share = min(share, _MOST_SLOTS / max(1, slots))
        return min(1.0, max(share, _LEAST_READS * self.num_ranks / num_reads))


def slots_of(config: StoreConfig, num_rows: int) -> int:
    """Copies that the cache of a rank holds, as `StoreConfig` makes it; 0 for no cache."""
    if not config.cache.share:
        return 0
    return min(num_rows, max(1, round(config.cache.share * num_rows)))


def _rounded(numbers: NDArray[np.float64]) -> list[int]:
    return [round(float(number)) for number in numbers]
