"""The traffic of a store, by running the store itself on ranks that are threads.

The stores, caches, policies, wires and messages are those of a run. If there are many rows, only
those that the sample reads exist, under new ids of the same owners. Gradients are noise: neither
rows nor gradients have an influence on which messages are sent, but for the rounding errors that a
wire leaves.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from outsize.contracts import RowCounts, RowStore, RowUpdate
from outsize.contracts.messages import BYTE_KINDS
from outsize.plan.compact_ids import CompactIds
from outsize.plan.in_turn import InTurn
from outsize.plan.reads import StepReads
from outsize.plan.reference import fill_cache
from outsize.ranks.thread_ranks import ThreadRanks, run_as_ranks
from outsize.spec import TableSpec
from outsize.training.store_config import StoreConfig

COUNTED = (*BYTE_KINDS, "reads", "local", "hits", "pushes", "evictions")
"""The columns of counts: bytes sent by kind, then rows."""
_FEW_NUMBERS = 1 << 25
_TIMED_STEPS = 50


@dataclass(frozen=True)
class Simulated:
    """What simulated steps cost.

    Attributes:
        steps: `(steps, ranks, columns)` counts of each step.
        flushes: `(flushes, ranks, columns)` counts of each flush.
        cache_bytes: Bytes of the cache of each rank after the last flush, as `MemoryUse` counts.
        state_bytes: Bytes of the cache of each rank in a checkpoint.
        rows_s: Processor time of a rank per step, without waiting for others.
    """

    steps: Float64[np.ndarray, "steps ranks columns"]
    flushes: Float64[np.ndarray, "flushes ranks columns"]
    cache_bytes: list[int]
    state_bytes: list[int]
    rows_s: float


def simulate(
    config: StoreConfig,
    reads: Sequence[StepReads],
    num_slots: int,
    flushed_after: Sequence[int],
    num_rows: int | None = None,
    seed: int = 0,
) -> Simulated:
    """Run the steps of a sample.

    Args:
        config: The store, its wire, cache and row optimizer; the size of the cache is not read.
        reads: The reads of each step and rank.
        num_slots: Copies per rank; 0 for no cache.
        flushed_after: Numbers of steps after which the store is flushed, ascending.
        num_rows: Rows of the run's store, all of which are made if they are few; unknown by
            default.
        seed: Seed of the gradients.
    """
    num_ranks = len(reads[0])
    is_small = num_rows is not None and num_rows * config.dim <= _FEW_NUMBERS
    compact = CompactIds(reads, num_ranks, num_slots, num_rows if is_small else None)
    cache = replace(config.cache, share=num_slots / compact.num_rows)
    config = replace(config, cache=cache, overlap=False)  # which reads the same rows, only earlier
    spec = TableSpec("rows", compact.num_rows, config.dim)
    gradients = torch.randn(
        compact.largest, config.dim, generator=torch.Generator().manual_seed(seed)
    )
    flushes, every = set(flushed_after), max(1, len(reads) // _TIMED_STEPS)

    lock = threading.Lock()

    def work(threads: ThreadRanks) -> tuple[list[list[float]], list[list[float]], int, int, float]:
        ranks = InTurn(threads, lock)
        store = config.build_store([spec], seed, ranks)
        optimizer = config.build_row_optimizer(store)
        assert optimizer is not None
        of_steps: list[list[float]] = []
        of_flushes: list[list[float]] = []
        seconds: list[float] = []
        for step, parts in enumerate(reads, 1):
            renamed = [compact(ids) for ids in parts[ranks.rank]]
            if step % every:
                _step(store, renamed, gradients)
            else:
                with ranks.turn():
                    fill_cache()
                    started = time.thread_time()
                    _step(store, renamed, gradients)
                    seconds.append(time.thread_time() - started)
            of_steps.append(_line(store.take_counts()))
            if step in flushes:
                store.flush()
                of_flushes.append(_line(store.take_counts()))
        store.flush()  # as a run, which saves after its last validation
        state = store.rank_state().values()
        saved = sum(tensor.numel() * tensor.element_size() for tensor in state)
        held = store.memory_use().bytes_of("cache")
        return of_steps, of_flushes, held, saved, statistics.median(seconds)

    steps, flushed, held, saved, seconds = zip(*run_as_ranks(num_ranks, work), strict=True)
    return Simulated(
        _stacked(steps), _stacked(flushed), list(held), list(saved), statistics.fmean(seconds)
    )


def _step(store: RowStore, parts: Sequence[Int64[Tensor, " _"]], gradients: Tensor) -> None:
    """One training step: all its reads, then the update of the rows that it has read."""
    for ids in parts:
        store.exchange(None, ids)
    ids = parts[0] if len(parts) == 1 else torch.cat(list(parts)).unique()
    update = RowUpdate(ids, (gradients[: ids.shape[0]],), torch.ones_like(ids))
    store.submit(update)


def _line(counts: RowCounts | None) -> list[float]:
    assert counts is not None, "a store that is shared counts"
    numbers = {**asdict(counts), **counts.sent_bytes}
    return [float(numbers[name]) for name in COUNTED]


def _stacked(of_ranks: Sequence[list[list[float]]]) -> NDArray[np.float64]:
    """Counts as (steps, ranks, columns)."""
    found = np.array(of_ranks, dtype=np.float64).reshape(len(of_ranks), -1, len(COUNTED))
    return found.transpose(1, 0, 2)
