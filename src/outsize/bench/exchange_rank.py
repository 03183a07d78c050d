"""One of the ranks that `outsize bench calibrate` measures together; torchrun starts it.

    torchrun --standalone --nproc-per-node 2 -m outsize.bench.exchange_rank FILE

Each rank computes the reference steps while the others do, and exchanges messages between them, as
a step of training does. So it is slowed down by what the ranks share (memory, caches, clocks of
cores), and waits for slower ones. The first rank also computes while the others rest. It writes
FILE: a JSON object of the numbers that `measure_together` returns, averaged over ranks.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from outsize.launched import leave
from outsize.plan.reference import (
    WIDTH,
    dense_model,
    dense_reference,
    median_s,
    rows_reference,
    step_clock,
)
from outsize.ranks.collectives import ProcessRanks, barrier, mean_over_ranks_, process_group
from outsize.training.build import averaging_gradients

_STEPS, _ROUNDS_PER_STEP, _WARMUP = 30, 3, 5
_ROUNDS, _LARGE_ROUNDS, _LARGE_BYTES = 300, 15, 4_000_000
_FAST = 0.2  # of the messages: the others have waited for the processor
_NARROW = 64  # a model whose gradients are few bytes
_NAMES = ("dense", "rows", "wait", "round_s", "processor_s", "byte_s", "mean_s", "mean_byte_s")


def measure_together(ranks: ProcessRanks) -> dict[str, float]:
    """What ranks cost that work at once.

    Args:
        ranks: All ranks, each of which calls this.

    Returns:
        `dense` and `rows`, the processor time of the reference steps in multiples of those of a
        rank alone; `wait`, by what share a step with a round at its end takes longer than what it
        consists of, since ranks wait for the slowest; `round_s` and `processor_s`, the time of a
        round without content and its processor time; `byte_s`, seconds per byte sent in messages;
        `mean_s` and `mean_byte_s`, by how many seconds averaging gradients prolongs the step of a
        small model, and by how many more per byte that a larger one sends.
    """
    work = dense_reference(), rows_reference()
    alone = _steps(*work, lambda: None)[:2] if ranks.rank == 0 else (0.0, 0.0)
    barrier()
    counts = torch.zeros(ranks.size, 8, dtype=torch.int64)
    dense_s, rows_s, step_s, round_s = _steps(*work, lambda: ranks.swap_counts(counts))
    wait = max(0.0, step_s - round_s - dense_s - rows_s) / (dense_s + rows_s)
    _, processor_s = _timed(lambda: ranks.swap_counts(counts), _ROUNDS)
    byte_s, averaging = _content(ranks, round_s), _averaging(ranks, wait)
    measured = [dense_s, rows_s, wait, round_s, processor_s, byte_s, *averaging]
    means = torch.tensor(measured, dtype=torch.float64)
    mean_over_ranks_(means)
    found = dict(zip(_NAMES, means.tolist(), strict=True))
    if ranks.rank == 0:
        found["dense"], found["rows"] = (
            max(1.0, found[name] / own) for name, own in zip(("dense", "rows"), alone, strict=True)
        )
    return found


def _steps(
    dense: Callable[[], object], rows: Callable[[], object], swap: Callable[[], object]
) -> tuple[float, float, float, float]:
    """Steps of rows, dense work and rounds.

    Returns:
        Processor seconds of the dense work and of the rows, seconds of both with the round that
        follows them, and of a round that follows another.
    """
    clock = step_clock()
    of_dense, of_rows, steps, rounds = [], [], [], []
    for step in range(_WARMUP + _STEPS):
        began, times = time.perf_counter(), [clock()]
        for work in (rows, dense):
            work()
            times.append(clock())
        swap()
        marks = [time.perf_counter()]
        for _ in range(_ROUNDS_PER_STEP):
            swap()
            marks.append(time.perf_counter())
        if step >= _WARMUP:
            of_rows.append(times[1] - times[0])
            of_dense.append(times[2] - times[1])
            steps.append(marks[0] - began)
            rounds += [after - before for before, after in itertools.pairwise(marks)]
    return (
        statistics.median(of_dense), statistics.median(of_rows), statistics.median(steps),
        statistics.median(rounds),
    )  # fmt: skip


def _content(ranks: ProcessRanks, round_s: float) -> float:
    """Seconds per byte that this rank sends in messages."""
    peers = ranks.size - 1
    part = _LARGE_BYTES // peers
    message, nothing = torch.zeros(part, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)
    messages = [nothing if rank == ranks.rank else message for rank in range(ranks.size)]
    sizes = [len(each) for each in messages]
    large_s, _ = _timed(lambda: ranks.swap_bytes(messages, sizes), _LARGE_ROUNDS)
    return max(0.0, large_s - round_s) / (part * peers)


def _averaging(ranks: ProcessRanks, wait: float) -> tuple[float, float]:
    """By how much averaging gradients prolongs a step.

    Args:
        ranks: All ranks.
        wait: The share of a step that a rank waits for slower ones, which is counted as such.

    Returns:
        Seconds for a model of few bytes, and further seconds per byte that a larger one sends.
    """
    sent, longer = [], []
    for width in (_NARROW, WIDTH):
        model = dense_model(width)
        num_bytes = 4 * sum(weight.numel() for weight in model.parameters())
        sent.append(2 * (ranks.size - 1) / ranks.size * num_bytes)
        alone_s = median_s(dense_reference(model, width), _STEPS, _WARMUP)
        averaged = dense_reference(averaging_gradients(model), width)
        averaged_s = median_s(averaged, _STEPS, _WARMUP, time.perf_counter)  # waiting included
        longer.append(max(0.0, averaged_s - (1 + wait) * alone_s))
    few, many = longer
    return few, max(0.0, many - few) / (sent[1] - sent[0])


def _timed(call: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Seconds of one of the faster calls, and processor seconds per call."""
    for _ in range(_WARMUP):
        call()
    began, seconds = time.process_time(), []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return _fast(seconds), (time.process_time() - began) / rounds


def _fast(seconds: list[float]) -> float:
    return sorted(seconds)[int(_FAST * len(seconds))]


def main(path: str) -> None:
    """Measure on this rank; the first one writes what was found."""
    with process_group(torch.device("cpu")):
        ranks = ProcessRanks()
        found = measure_together(ranks)
        if ranks.rank == 0:
            Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave(0)
