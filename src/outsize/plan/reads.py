"""What the ranks of a run read in its first steps, recorded by the run's own task."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.optim import Optimizer

from outsize.data import ClickBatch
from outsize.hashing import mix_bits
from outsize.plan.rowless import RecordedStore, RowlessStore
from outsize.training.tasks import Task
from outsize.training.tasks.base import RankPart

Keep = Callable[[Int64[Tensor, " n"]], Int64[Tensor, " _"]]
StepReads = list[list[Int64[Tensor, " _"]]]
"""The reads of one step: for each rank, the store ids of each of its reads."""
_HASH_BITS = 40


def record_reads(
    task: Task[Any],
    num_ranks: int,
    num_steps: int,
    keep: Keep,
    dense: Optimizer | None = None,
) -> list[StepReads]:
    """The reads of the first steps, each rank on its own part of the batches.

    The batches are those of the run. A model that draws items draws by its weights: those it has,
    or those that it gets in these steps.

    Args:
        task: The task, over a `RowlessStore` or a `RecordedStore`.
        num_ranks: Number of ranks.
        num_steps: Number of steps.
        keep: Which of the ids of a read are recorded.
        dense: The optimizer of the dense weights, to train the model; `None` to leave it as it is.
    """
    store = recording_store(task)
    parts = [batches_of(task, RankPart(rank, num_ranks)) for rank in range(num_ranks)]
    task.model.train()
    optimizers = [each for each in (dense, task.rows if dense else None) if each is not None]
    recorded: list[StepReads] = []
    for _ in range(num_steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        reads = [_read(task, store, next(part), num_ranks if dense else 0) for part in parts]
        for optimizer in optimizers:
            optimizer.step()
        recorded.append([[keep(ids) for ids in each] for each in reads])
    return recorded


def recording_store(task: Task[Any]) -> RowlessStore | RecordedStore:
    """The store of a task that was built for planning."""
    store = task.embeddings.store
    assert isinstance(store, RowlessStore | RecordedStore)
    return store


def keep_share(share: float) -> Keep:
    """Keep the ids of a random share of all rows, the same ones in every step.

    What happens to a row in a cache hardly depends on which other rows there are, so a cache of a
    share of the slots over a share of the rows behaves as the whole one (spatial sampling, as in
    SHARDS, FAST 2015).

    Args:
        share: From 0 to 1, which keeps all.
    """
    if share >= 1:
        return lambda ids: ids
    bound = int(share * (1 << _HASH_BITS))

    def keep(ids: Int64[Tensor, " n"]) -> Int64[Tensor, " _"]:
        return ids[(mix_bits(ids) & ((1 << _HASH_BITS) - 1)) < bound]

    return keep


def batches_of(task: Task[Any], part: RankPart) -> Generator[Any]:
    """The batches of one rank, epoch after epoch."""
    for epoch in itertools.count():
        yield from task.train_batches(epoch, 0, part)


def _read(
    task: Task[Any], store: RowlessStore | RecordedStore, batch: Any, num_trained: int
) -> list[Int64[Tensor, " _"]]:
    """The training reads of one batch, of one of `num_trained` ranks that train; 0 for none."""
    store.reads.clear()
    if isinstance(store, RowlessStore):
        store.has_values = not isinstance(batch, ClickBatch)  # they decide nothing there
    with torch.enable_grad():
        if isinstance(batch, ClickBatch):
            task.embeddings(batch.ids)  # the rest of the model reads nothing
        else:
            loss = task.loss(batch)
            if num_trained:
                (loss / num_trained).backward()
            task.commit()
    found = list(store.reads)
    if isinstance(store, RowlessStore):
        store.has_values = True
    store.reads.clear()
    return found
