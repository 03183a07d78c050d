"""One rank of runs, which writes down the times of their steps.

    python -m benchmarks.plan.timed_rank OUT RUN.toml RUN.toml…

`times` starts it by torchrun, once per rank. It trains one run after the other. `OUT/rank-0.json`
has for each of them the seconds and processor seconds of every step but the first ones by part, and
what all ranks sent.
"""

import contextlib
import gc
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.plan.step_parts import StepParts
from outsize.ranks.collectives import local_rank, process_group
from outsize.training import RunConfig, load_config
from outsize.training.build import build_optimizer
from outsize.training.callbacks import Callbacks
from outsize.training.loop import Loop
from outsize.training.row_counts import add_counts, as_metrics, sent_bytes
from outsize.training.tasks import TASKS

_WARMUP = 10


class _Lines(Callbacks):
    def __init__(self) -> None:
        self.lines: list[Mapping[str, Any]] = []

    def log(self, line: Mapping[str, Any]) -> None:
        self.lines.append(line)


def main(out: str, *runs: str) -> None:
    """Train each run, and write the times of its steps."""
    torch.set_num_threads(1)
    found = {}
    with process_group(torch.device("cpu")):
        for run in runs:
            config = load_config(run)
            torch.manual_seed(config.seed)
            found[Path(run).stem] = timed_run(config)
            gc.collect()  # the process group ends after what uses it
            (Path(out) / f"rank-{local_rank()}.json").write_text(json.dumps(found))


def timed_run(config: RunConfig) -> dict[str, Any]:
    """Train, and return the times of the steps, and the bytes that all ranks sent.

    It ends with a flush, as a run does, but without the validation after it.
    """
    num_steps = config.train.steps
    assert num_steps is not None
    config = replace(config, train=replace(config.train, steps=num_steps + 1))
    with contextlib.ExitStack() as stack:
        task = TASKS[config.task](config)
        stack.callback(task.release_ranks)
        optimizer = build_optimizer(config, task.trained)
        store = task.embeddings.store
        if store is not None:
            stack.enter_context(store)
        parts, logged = StepParts(), _Lines()
        stack.enter_context(parts.watching(store))
        loop = Loop(task, config, optimizer, logged)
        steps = loop.steps()
        for _ in range(num_steps):
            next(steps)
            parts.end_step()
        if store is not None:
            store.flush()
        rest = as_metrics(add_counts(store, loop.state.row_counts))
        return {
            "steps": parts.steps[_WARMUP:],
            "sent": sum(sent_bytes([*logged.lines, rest]).values()),
        }


if __name__ == "__main__":
    main(*sys.argv[1:])
