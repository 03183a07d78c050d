"""One of the ranks that `outsize bench calibrate` measures together; torchrun starts it.

    torchrun --standalone --nproc-per-node 2 -m outsize.bench.exchange_rank FILE

Each rank computes the reference steps while the others do, and exchanges messages between them, as
a step of training does. So it is slowed down by what the ranks share (memory, caches, clocks of
cores), and waits for slower ones. The first rank also computes while the others rest. It writes
FILE: a JSON object of the numbers that `measure_together` returns, averaged over ranks.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from outsize.launched import leave
from outsize.plan.reference import (
    dense_model,
    dense_reference,
    median_s,
    rows_reference,
    step_clock,
)
from outsize.ranks.collectives import ProcessRanks, barrier, mean_over_ranks_, process_group

_STEPS, _ROUNDS_PER_STEP, _WARMUP = 30, 3, 5
_ROUNDS, _LARGE_ROUNDS, _LARGE_BYTES = 300, 15, 4_000_000
_FAST = 0.2  # of the messages: the others have waited for the processor
_NAMES = ("dense", "rows", "wait", "round_s", "processor_s", "byte_s", "mean_byte_s")


def measure_together(ranks: ProcessRanks) -> dict[str, float]:
    """What ranks cost that work at once.

    Args:
        ranks: All ranks, each of which calls this.

    Returns:
        `dense` and `rows`, the processor time of the reference steps in multiples of those of a
        rank alone; `wait`, the time of waiting for slower ranks as a share of the dense step;
        `round_s` and `processor_s`, the time of a round without content and its processor time;
        `byte_s`, seconds per byte sent in messages, and `mean_byte_s`, by how many seconds per byte
        sent averaging the gradient prolongs the reference step.
    """
    work = dense_reference(), rows_reference()
    alone = _steps(*work, lambda: None)[:2] if ranks.rank == 0 else (0.0, 0.0)
    barrier()
    counts = torch.zeros(ranks.size, 8, dtype=torch.int64)
    dense_s, rows_s, arrival_s, round_s = _steps(*work, lambda: ranks.swap_counts(counts))
    _, processor_s = _timed(lambda: ranks.swap_counts(counts), _ROUNDS)
    byte_s, mean_byte_s = _content(ranks, round_s), _averaging(ranks, dense_s)
    measured = [dense_s, rows_s, max(0.0, arrival_s - round_s), round_s, processor_s, byte_s]
    means = torch.tensor([*measured, mean_byte_s], dtype=torch.float64)
    mean_over_ranks_(means)
    found = dict(zip(_NAMES, means.tolist(), strict=True))
    if ranks.rank == 0:
        found["wait"] /= found["dense"]
        found["dense"], found["rows"] = (
            max(1.0, found[name] / own) for name, own in zip(("dense", "rows"), alone, strict=True)
        )
    return found


def _steps(
    dense: Callable[[], object], rows: Callable[[], object], swap: Callable[[], object]
) -> tuple[float, float, float, float]:
    """Steps of dense work, rounds and rows.

    Returns:
        Processor seconds of the dense work and of the rows, seconds of the round that begins with
        the dense work done, and of one that follows it.
    """
    clock = step_clock()
    of_dense, of_rows, arrivals, others = [], [], [], []
    for step in range(_WARMUP + _STEPS):
        times = [clock()]
        for work in (rows, dense):
            work()
            times.append(clock())
        rounds = []
        for _ in range(1 + _ROUNDS_PER_STEP):
            started = time.perf_counter()
            swap()
            rounds.append(time.perf_counter() - started)
        if step >= _WARMUP:
            of_rows.append(times[1] - times[0])
            of_dense.append(times[2] - times[1])
            arrivals.append(rounds[0])
            others += rounds[1:]
    return (
        statistics.median(of_dense), statistics.median(of_rows), statistics.median(arrivals),
        statistics.median(others),
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


def _averaging(ranks: ProcessRanks, dense_s: float) -> float:
    """Seconds per byte that this rank sends to average a gradient within the backward pass.

    Args:
        ranks: All ranks.
        dense_s: Seconds of the reference step without averaging, beside the other ranks'.
    """
    model = dense_model()
    sent = 2 * (ranks.size - 1) / ranks.size * 4 * sum(p.numel() for p in model.parameters())
    step = dense_reference(DistributedDataParallel(model))
    averaged_s = median_s(step, _STEPS, _WARMUP, time.perf_counter)  # waiting included
    return max(0.0, averaged_s - dense_s) / sent


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
