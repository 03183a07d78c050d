"""One rank of a run on a core of its own, which writes down the times of its steps.

python -m benchmarks.plan.timed_rank RUN.toml OUT

`times` starts it by torchrun, once per rank. `OUT/rank-0.json` has seconds and processor seconds of
every step but the first ones, and the bytes that this rank sent in all.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import torch

from outsize.ranks.collectives import local_rank, process_group
from outsize.training import load_config
from outsize.training.build import build_optimizer
from outsize.training.loop import Loop
from outsize.training.tasks import TASKS

_WARMUP = 10


def main(run: str, out: str) -> None:
    """Train, and write the times of the steps."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[local_rank() % len(cores)]})
    torch.set_num_threads(1)
    config = load_config(run)
    torch.manual_seed(config.seed)
    with contextlib.ExitStack() as stack:
        stack.enter_context(process_group(torch.device("cpu")))
        task = TASKS[config.task](config)
        stack.callback(task.release_ranks)
        optimizer = build_optimizer(config, task.trained)
        if task.embeddings.store is not None:
            stack.enter_context(task.embeddings.store)
        marks = []
        loop = Loop(task, config, optimizer)
        for _ in loop.steps():
            marks.append((time.perf_counter(), time.process_time()))
        pairs = list(zip(marks[_WARMUP:-1], marks[_WARMUP + 1 :], strict=True))
        found = {
            "step_s": [after[0] - before[0] for before, after in pairs],
            "processor_s": [after[1] - before[1] for before, after in pairs],
        }
        (Path(out) / f"rank-{local_rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
