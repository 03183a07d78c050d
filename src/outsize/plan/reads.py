"""What the ranks of a run read in its first steps, recorded by the run's own task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.data import ClickBatch
from outsize.hashing import mix_bits
from outsize.plan.rowless import RowlessStore
from outsize.training.tasks import Task
from outsize.training.tasks.base import RankPart

Keep = Callable[[Int64[Tensor, " n"]], Int64[Tensor, " _"]]
StepReads = list[list[Int64[Tensor, " _"]]]
"""The reads of one step: for each rank, the store ids of each of its reads."""
_HASH_BITS = 40


def record_reads(task: Task[Any], num_ranks: int, num_steps: int, keep: Keep) -> list[StepReads]:
    """The reads of the first steps, each rank on its own part of the batches.

    The batches are those of the run. Of a model that draws items, the draws are those of its
    initial weights.

    Args:
        task: The task, over a `RowlessStore`.
        num_ranks: Number of ranks.
        num_steps: Number of steps.
        keep: Which of the ids of a read are recorded.
    """
    store = rowless_store(task)
    parts = [_batches(task, RankPart(rank, num_ranks)) for rank in range(num_ranks)]
    task.model.train()
    recorded: list[StepReads] = []
    for _ in range(num_steps):
        recorded.append([[keep(ids) for ids in _read(task, store, next(part))] for part in parts])
    return recorded


def rowless_store(task: Task[Any]) -> RowlessStore:
    """The store of a task that was built for planning."""
    store = task.embeddings.store
    assert isinstance(store, RowlessStore)
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


def _batches(task: Task[Any], part: RankPart) -> Iterator[Any]:
    """The batches of one rank, epoch after epoch."""
    epoch = 0
    while True:
        yield from task.train_batches(epoch, 0, part)
        epoch += 1


def _read(task: Task[Any], store: RowlessStore, batch: Any) -> list[Int64[Tensor, " _"]]:
    """The training reads of one batch."""
    store.reads.clear()
    store.has_values = not isinstance(batch, ClickBatch)  # they decide nothing there
    with torch.enable_grad():
        if isinstance(batch, ClickBatch):
            task.embeddings(batch.ids)  # the rest of the model reads nothing
        else:
            task.loss(batch)
            task.commit()
    found, store.has_values = list(store.reads), True
    store.reads.clear()
    return found
