"""One rank of the exchange that `outsize bench calibrate` measures; torchrun starts it.

    torchrun --standalone --nproc-per-node 2 -m outsize.bench.exchange_rank FILE

The first rank writes FILE: seconds of a round without content, processor seconds of the same, and
seconds per byte.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from outsize.ranks.collectives import ProcessRanks, process_group

_ROUNDS, _LARGE_ROUNDS, _LARGE_BYTES = 300, 15, 4_000_000
_WARMUP = 5
_FAST = 0.2  # of the rounds: the others have waited for the processor


def measure_exchange(ranks: ProcessRanks) -> dict[str, float]:
    """Time rounds of numbers, and of messages with content.

    Args:
        ranks: All ranks, each of which calls this.
    """
    counts = torch.zeros(ranks.size, 8, dtype=torch.int64)
    round_s, processor_s = _timed(lambda: ranks.swap_counts(counts), _ROUNDS)
    peers = ranks.size - 1
    part = _LARGE_BYTES // peers
    message, nothing = torch.zeros(part, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)
    messages = [nothing if rank == ranks.rank else message for rank in range(ranks.size)]
    sizes = [len(each) for each in messages]
    large_s, _ = _timed(lambda: ranks.swap_bytes(messages, sizes), _LARGE_ROUNDS)
    byte_s = max(0.0, large_s - round_s) / (part * peers)
    return {"round_s": round_s, "processor_s": processor_s, "byte_s": byte_s}


def _timed(call: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Seconds of one of the faster calls, and processor seconds per call."""
    for _ in range(_WARMUP):
        call()
    began, seconds = time.process_time(), []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return sorted(seconds)[int(_FAST * rounds)], (time.process_time() - began) / rounds


def main(path: str) -> None:
    """Measure on this rank; the first one writes what it found."""
    with process_group(torch.device("cpu")):
        ranks = ProcessRanks()
        found = measure_exchange(ranks)
        if ranks.rank == 0:
            Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
