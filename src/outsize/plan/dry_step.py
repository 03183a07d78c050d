"""The memory and the time of a training step, and the memory of an evaluation, without rows.

A few batches of the run go through its model, forwards and backwards, one through an evaluation.
What the process then held at most is the memory of a rank without its embeddings.
"""

from __future__ import annotations

import gc
import resource
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from outsize.data import ClickBatch
from outsize.data.click_data import SPLITS, ClickData
from outsize.metrics import ClickMetrics
from outsize.plan.reads import batches_of
from outsize.plan.reference import step_clock
from outsize.plan.rowless import RowlessStore
from outsize.training.build import build_dense_optimizer
from outsize.training.config import RunConfig
from outsize.training.gradients import clip_gradients
from outsize.training.retrieval_evaluation import QUERIES_PER_CHUNK
from outsize.training.tasks import ClickTask, RetrievalTask, Task
from outsize.training.tasks.base import RankPart

_STATUS, _MAPS, _RESET = (Path(f"/proc/self/{name}") for name in ("status", "smaps", "clear_refs"))
_STEPS, _TIMED_STEPS = 3, 9  # of which the first ones load kernels and fill queues
_EVALUATED_CHUNKS = 2  # the second one needs memory while the results of the first are kept
_MOST_SCORES = 1_000_000_000  # of queries by items, in an evaluation that is run to be measured


@dataclass(frozen=True)
class DryStep:
    """What a rank holds without its embeddings.

    Attributes:
        host_bytes: Main memory at most: interpreter, libraries, data, model and one batch.
        device_bytes: Memory of the accelerator at most; `None` if the run is on the CPU.
        unread_bytes: Bytes of mapped files that were not read yet.
        left_out: What was not measured, in words.
        dense_s: Seconds of a step without its rows: a batch is made, and goes forwards and
            backwards through the model. The least of three; the median of nine, if it is timed.
    """

    host_bytes: int
    device_bytes: int | None
    unread_bytes: int
    left_out: tuple[str, ...] = ()
    dense_s: float = 0.0


def dry_step(config: RunConfig, task: Task[Any], num_ranks: int, *, timed: bool = False) -> DryStep:
    """Run steps and one evaluation batch over a model without rows; measure memory and time.

    Args:
        config: The run.
        task: Its task, over a `RowlessStore` or over tables; its weights are changed.
        num_ranks: Number of ranks, of whose batches the first one's part is taken.
        timed: Whether the time matters, so that more steps are taken.
    """
    gc.collect()
    reset_peak()
    device = task.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    task.begin()
    dense_s = _train(config, task, num_ranks, timed=timed)
    left_out = _evaluate(config, task, num_ranks)
    on_device = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return DryStep(peak_bytes(), on_device, unread_bytes(), left_out, dense_s)


def _train(config: RunConfig, task: Task[Any], num_ranks: int, *, timed: bool) -> float:
    """Take some steps; returns the seconds of one."""
    task.model.train()
    optimizer = build_dense_optimizer(config.optimizer, task.trained)
    clock, seconds = step_clock(task.device), []
    batches = batches_of(task, RankPart(0, num_ranks))
    for _ in range(_STEPS + (_TIMED_STEPS if timed else 0)):
        _synchronize(task.device)
        started = clock()
        _take_step(config, task, optimizer, next(batches))
        _synchronize(task.device)
        seconds.append(clock() - started)
    batches.close()
    return statistics.median(seconds[_STEPS:]) if timed else min(seconds)


def _take_step(config: RunConfig, task: Task[Any], optimizer: Optimizer, batch: Any) -> None:
    """Take one step, as the loop does but for rows."""
    store = task.embeddings.store
    if isinstance(store, RowlessStore):
        store.has_values = not isinstance(batch, ClickBatch)
    optimizer.zero_grad()
    with torch.enable_grad():
        loss = task.loss(batch)
        loss.backward()
    float(clip_gradients(optimizer, None, config.train.clip_norm, 1, task.device))
    optimizer.step()
    task.commit()
    if isinstance(store, RowlessStore):
        store.has_values = True
        store.forget_pending()
        store.reads.clear()


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def evaluated_batch(config: RunConfig, data: ClickData, num_ranks: int) -> ClickBatch:
    """The first rank's part of the first batch of an evaluation, of the larger split."""
    size = config.train.eval_batch_size * num_ranks
    split = max(SPLITS[1:], key=data.num_examples)
    return next(data.batches(split, size, rank=0, world_size=num_ranks))


def _evaluate(config: RunConfig, task: Task[Any], num_ranks: int) -> tuple[str, ...]:
    """Evaluate a batch of clicks, some chunks of queries if that is quick, or a split of nodes."""
    if isinstance(task, ClickTask):
        batch = evaluated_batch(config, task.data, num_ranks).to(task.device)
        task.model.eval()
        with torch.no_grad():
            ClickMetrics().add(task.model(batch.dense, batch.ids), batch.labels)
        task.model.train()
        return ()
    if isinstance(task, RetrievalTask):
        asked = int((task.data.relevant("validation").counts() > 0).sum())
        few = min(asked, _EVALUATED_CHUNKS * min(QUERIES_PER_CHUNK, config.train.eval_batch_size))
        if few * task.data.items.num_rows > _MOST_SCORES:
            return ("the memory of an evaluation",)
        task.evaluate("validation", few)
        return ()
    task.evaluate("validation")
    return ()


def reset_peak() -> None:
    """Forget the largest memory of this process so far, where the system allows it."""
    try:
        _RESET.write_text("5")
    except OSError:
        return


def peak_bytes() -> int:
    """The largest resident memory of this process since `reset_peak`."""
    found = _status("VmHWM:")
    return found or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes() -> int:
    """The resident memory of this process; 0 if unknown."""
    return _status("VmRSS:")


def unread_bytes() -> int:
    """Bytes of the files that this process has mapped to read, and has not read yet."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return 0
    total, is_data = 0, False
    for line in lines:
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            is_data = words[1] == "r--s" and len(words) > 5
        elif is_data and words[0] == "Size:":
            total += int(words[1]) * 1024
        elif is_data and words[0] == "Rss:":
            total -= int(words[1]) * 1024
    return total


def _status(name: str) -> int:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    found = [line.split() for line in lines if line.startswith(name)]
    return int(found[0][1]) * 1024 if found else 0
