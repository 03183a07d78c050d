"""What the training loop and its data add to a bare step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from outsize.bench.captured import in_turn
from outsize.bench.timing import time_in_turns
from outsize.data import ClickBatch
from outsize.training.build import build_dense_optimizer
from outsize.training.config import RunConfig
from outsize.training.loop import Loop
from outsize.training.tasks import ClickTask
from outsize.training.tasks.base import RankPart

_BATCHES_KEPT = 8
Step = Callable[[], object]


def measure_loop_share(config: RunConfig, rounds: int, calls: int) -> dict[str, Any]:
    """Time steps of a run, steps of a run on batches in memory, bare steps, and making batches."""
    task = ClickTask(config)
    loop = Loop(task, config, build_dense_optimizer(config.optimizer, task.model))
    steps = loop.steps()
    fresh = task.data.batches("train", config.train.batch_size)
    kept = list(islice(task.train_batches(0, 0), _BATCHES_KEPT))
    other = _KeptBatches(config, kept)
    stored = Loop(other, config, build_dense_optimizer(config.optimizer, other.model)).steps()
    store = task.embeddings.store
    is_captured = task.device.type == "cuda" and store is not None and store.fused is not None
    timings = time_in_turns(
        {
            "loop": lambda: next(steps),
            "stored": lambda: next(stored),
            "bare": bare_steps(task.model, loop.optimizers, kept, is_captured),
            "data": lambda: next(fresh),
        },
        rounds=rounds,
        calls=calls,
        warmup=8,
    )
    whole, in_memory, bare = (timings[name].median_s for name in ("loop", "stored", "bare"))
    return {
        "batch_size": config.train.batch_size,
        "share": 1 - bare / whole,
        "share_of_examples": 1 - in_memory / whole,
        **{name: asdict(timing) for name, timing in timings.items()},
    }


def loop_lines(results: Sequence[dict[str, Any]]) -> list[str]:
    """The results as lines of Markdown."""
    names = {"loop": "step in the loop", "stored": "on batches in memory", "bare": "bare step"}
    names |= {"data": "making a batch"}
    shares = {"share": "share of data and loop", "share_of_examples": "of it, making examples"}
    names, shares = (  # older results have fewer
        {name: title for name, title in known.items() if name in results[0]}
        for known in (names, shares)
    )
    titles = " | ".join([*names.values(), *shares.values()])
    lines = [
        "\nWhat data and loop (schedules, checks, clipping, logging) add to a bare step on batches "
        "in memory. On a GPU, a thread makes batches ahead; synthetic examples are generated on "
        "the GPU that trains.\n",
        f"| batch | {titles} |",
        "|--:|" + "--:|" * (len(names) + len(shares)),
    ]
    for row in results:
        cells = [f"{row[name]['median_s'] * 1e3:.2f} ms" for name in names]
        cells += [f"{row[name]:.1%}" for name in shares]
        lines.append(f"| {row['batch_size']:,} | {' | '.join(cells)} |")
    return lines


def bare_steps(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    batches: Sequence[ClickBatch],
    is_captured: bool = False,
) -> Step:
    """A function that takes one bare training step on the next of a few stored batches.

    Args:
        model: The model.
        optimizers: Its optimizers.
        batches: The batches.
        is_captured: Whether the steps are captured in CUDA graphs, one for each batch.
    """
    model.train()

    def step(batch: ClickBatch) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(batch.dense, batch.ids), batch.labels)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()

    return in_turn([partial(step, batch) for batch in batches], is_captured)


class _KeptBatches(ClickTask):
    """A task that trains on a few batches again and again."""

    def __init__(self, config: RunConfig, batches: Sequence[ClickBatch]) -> None:
        super().__init__(config)
        self._kept = batches

    def train_batches(
        self, epoch: int, start: int, part: RankPart | None = None
    ) -> Iterator[ClickBatch]:
        return cycle(self._kept)
