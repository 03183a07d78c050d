"""A whole run: from a configuration to a folder with a trained model, its log and its report."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from outsize.checkpoint import latest_checkpoint
from outsize.errors import ConfigError, DataError
from outsize.integrations.line_logs import LineLog
from outsize.interrupts import StopRequested, stopping_when
from outsize.models import LogisticConfig
from outsize.ranks.collectives import (
    gather_values,
    is_restarted,
    process_group,
    rank,
    value_of_first,
)
from outsize.ranks.failures import failing_together
from outsize.reporting.environment import environment
from outsize.spec import MemoryUse
from outsize.training.build import build_device, build_optimizer
from outsize.training.callbacks import Callbacks
from outsize.training.config import RunConfig, load_config
from outsize.training.further_logs import further_logs
from outsize.training.loop import Loop
from outsize.training.memory import memory_of_all_ranks
from outsize.training.memory_needs import refusing_what_memory_cannot_hold
from outsize.training.metric_names import Metrics
from outsize.training.run_folder import RunFolder
from outsize.training.step_progress import TrainingProgress
from outsize.training.tables_config import TablesConfig
from outsize.training.tasks import TASKS

_LOW_RATE = 0.001


@dataclass(frozen=True)
class RunResult:
    """What a run came to.

    Attributes:
        out: The run folder, if one was written.
        steps: Steps taken.
        stopped: "finished", or "early" for early stopping.
        best: Metrics of the best validation, with its step; `None` for one that does not exist.
        test: Test metrics at that step, likewise.
        memory: What embeddings and caches cost, on all ranks together.
        elapsed_s: Wall-clock time of this call.
        model: The model after the last step; its best weights are in `out`.
    """

    out: Path | None
    steps: int
    stopped: str
    best: Metrics
    test: Metrics
    memory: MemoryUse
    elapsed_s: float
    model: torch.nn.Module = field(repr=False)

    def summary(self) -> dict[str, Any]:
        """The result as plain values, for JSON."""
        memory = asdict(self.memory)
        return {
            "out": None if self.out is None else str(self.out),
            "steps": self.steps,
            "stopped": self.stopped,
            "validation": self.best,
            "test": self.test,
            "memory": {**memory, "total_bytes": self.memory.total_bytes},
            "elapsed_s": round(self.elapsed_s, 3),
        }


def train(
    config: RunConfig | str | Path,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    quiet: bool = False,
) -> RunResult:
    """Train a model; started by torchrun, on all its ranks together.

    With N ranks, `train.batch_size` is the batch of one rank, and training equals that of one
    process with a batch N times as large. Rank 0 writes the folder, and every rank its rows. Where
    torchrun has restarted the ranks, the run in `out` is resumed without being asked to.

    Args:
        config: A run, or the path of its TOML file.
        out: Folder to write the run to; without one nothing is written.
        resume: Continue the run in `out` from its last checkpoint.
        quiet: Show no progress.

    Returns:
        Metrics, memory and the trained model.
    """
    if not isinstance(config, RunConfig):
        config = load_config(config)
    if resume and out is None:
        raise ConfigError("resuming needs the folder of the run: give out=")
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        _enter_surroundings(stack, config)
        start = _decide_start(config, None if out is None else RunFolder(Path(out)), resume)
        callbacks, stopping = _FolderAndProgress(start.written), threading.Event()
        loop = _build_loop(stack, config, start, callbacks, stopping)
        checkpoint = _begin(stack, loop, start, callbacks)
        callbacks.progress = stack.enter_context(
            TrainingProgress(loop.total_steps, loop.state.step, quiet or rank() > 0)
        )
        _say_where_it_begins(callbacks, loop, start, checkpoint)
        _say_what_defaults_cost(callbacks, config)
        with _setting_on_signal(stopping):
            loop.fit()
        memory, memory_by_part = memory_of_all_ranks(loop.task.embeddings, loop.task.extra_memory())
    result = _result(loop, start, memory, time.perf_counter() - started)
    if start.written is not None:
        from outsize.training.report import write_report  # only runs with a folder need it

        start.written.write_summary(
            {
                **result.summary(),
                "memory_by_part": {name: asdict(use) for name, use in memory_by_part.items()},
                "environment": environment(),
            }
        )
        write_report(start.written)
    return result


@dataclass(frozen=True)
class _Start:
    """Where a run is written, and whether it goes on with one that is there.

    Attributes:
        folder: The run folder, if there is one.
        written: The same on the rank that writes it, `None` on the others.
        resumes: Whether the run in it is continued.
        was_restarted: Whether that is because torchrun has restarted the ranks.
    """

    folder: RunFolder | None
    written: RunFolder | None
    resumes: bool
    was_restarted: bool

    @property
    def checkpoints(self) -> Path | None:
        """Where checkpoints are."""
        return None if self.folder is None else self.folder.checkpoints


def _enter_surroundings(stack: contextlib.ExitStack, config: RunConfig) -> None:
    """Seeds, kernels and ranks of a run, until the stack is left."""
    stack.enter_context(refusing_what_memory_cannot_hold())
    stack.enter_context(torch.random.fork_rng())
    torch.manual_seed(config.seed)
    stack.enter_context(_determinism(config.train.deterministic))
    stack.enter_context(process_group(build_device(config.train.device)))


def _decide_start(config: RunConfig, folder: RunFolder | None, resume: bool) -> _Start:
    """Whether to resume, and the run that is resumed compared with this one; by all ranks."""
    if folder is None:
        if config.log.is_wanted:
            raise ConfigError("[log] writes into the folder of a run: give out=, or leave it out")
        return _Start(None, None, resumes=False, was_restarted=False)
    with failing_together(ConfigError):
        if rank() == 0:
            config.log.require_packages()
    restarted = any(gather_values(is_restarted())) and bool(value_of_first(folder.holds_run()))
    resume = resume or restarted
    if resume:
        # A rank's batch follows the number of ranks; the loop compares the batch of all.
        with failing_together(ConfigError):
            folder.require_same_run(config, "train.batch_size")
    return _Start(folder, folder if rank() == 0 else None, resume, restarted)


def _build_loop(
    stack: contextlib.ExitStack,
    config: RunConfig,
    start: _Start,
    callbacks: Callbacks,
    stopping: threading.Event,
) -> Loop:
    """The task with its optimizers; its stores are closed when the stack is left."""
    task = TASKS[config.task](config)
    stack.callback(task.release_ranks)
    optimizer = build_optimizer(config, task.trained)
    for store in (task.embeddings.store, getattr(optimizer, "store", None)):
        if store is not None:
            stack.enter_context(store)
    return Loop(task, config, optimizer, callbacks, start.checkpoints, stopping.is_set)


def _begin(
    stack: contextlib.ExitStack, loop: Loop, start: _Start, callbacks: _FolderAndProgress
) -> Path | None:
    """Take the folder, and the state of the last checkpoint if the run goes on; by all ranks.

    Returns:
        That checkpoint, if there is one.
    """
    with failing_together(ConfigError):
        if start.written is not None:
            if not start.resumes:
                start.written.begin(loop.config)
            stack.enter_context(start.written.lock())
    resumable = start.checkpoints if start.resumes else None
    checkpoint = None if resumable is None else latest_checkpoint(resumable)
    logged = None if checkpoint is None else loop.load(checkpoint)
    with failing_together(DataError):
        if start.written is not None:
            if checkpoint is not None:
                start.written.log.truncate(loop.state.step, logged)
                start.written.update(loop.config)
            else:
                start.written.restart(loop.config)
            callbacks.logs = stack.enter_context(further_logs(loop.config, start.written))
    return checkpoint


def _say_where_it_begins(
    callbacks: Callbacks, loop: Loop, start: _Start, checkpoint: Path | None
) -> None:
    if start.folder is not None and start.was_restarted:
        callbacks.say(f"torchrun restarted the ranks: going on with the run in {start.folder.path}")
    if checkpoint is not None:
        callbacks.say(f"resumed at step {loop.state.step:,} from {checkpoint}")
        if loop.state.stopped == "early" and loop.state.step < loop.total_steps:
            callbacks.say("it was stopped early, and stays so: set train.early_stop = false")
    elif start.resumes:
        callbacks.say("no checkpoint was written yet: beginning with the first step")


def _say_what_defaults_cost(callbacks: Callbacks, config: RunConfig) -> None:
    """Warn of wide rows under logistic regression, and of the low learning rate of tables."""
    if isinstance(config.model, LogisticConfig) and config.embeddings.dim > 1:
        callbacks.say(
            f"note: logistic sums the {config.embeddings.dim} numbers of a row into one weight, "
            "and steps as many times as far: set embeddings.dim = 1. On samples of two data sets "
            "the test AUC was 0.684 and 0.620 with 16, 0.687 and 0.682 with 1"
        )
    wanted = config.embeddings
    is_low = config.optimizer.kind == "adamw" and config.optimizer.learning_rate <= _LOW_RATE
    if isinstance(wanted, TablesConfig) and wanted.learning_rate is None and is_low:
        rate = config.optimizer.learning_rate
        callbacks.say(
            f"note: tables are trained by [optimizer], adamw with {rate:g}, which is low for "
            "embeddings: on samples of two data sets the test AUC was 0.637 and 0.656 so, 0.709 "
            "and 0.708 with embeddings.learning_rate = 0.03, and 0.706 and 0.700 in a store"
        )


def _result(loop: Loop, start: _Start, memory: MemoryUse, elapsed_s: float) -> RunResult:
    state = loop.state
    return RunResult(
        out=None if start.folder is None else start.folder.path,
        steps=state.step,
        stopped=state.stopped,
        best=state.best,
        test=state.test,
        memory=memory,
        elapsed_s=elapsed_s,
        model=loop.task.model,
    )


class _FolderAndProgress(Callbacks):
    """Writes every line to the folder and the logs of `[log]`, and shows it."""

    def __init__(self, folder: RunFolder | None) -> None:
        self._folder = folder
        self.progress: TrainingProgress | None = None
        self.logs: list[LineLog] = []

    def log(self, line: Mapping[str, Any]) -> None:
        if self._folder is not None:
            self._folder.log.append(line)
        for log in self.logs:
            log.write(line)
        if self.progress is not None:
            self.progress.log(line)

    def log_facts(self) -> dict[str, Any] | None:
        return None if self._folder is None else self._folder.log.facts()

    def advance(self, step: int) -> None:
        if self.progress is not None:
            self.progress.advance(step)

    def say(self, text: str) -> None:
        if self.progress is not None:
            self.progress.say(text)


@contextlib.contextmanager
def _determinism(wanted: bool) -> Iterator[None]:
    """Let torch use deterministic kernels only, while a run lasts."""
    if not wanted:  # torch imports its compilers to be told so, which takes seconds
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextlib.contextmanager
def _setting_on_signal(stopping: threading.Event) -> Iterator[None]:
    """Turn the first Ctrl-C or SIGTERM into a request to save and stop; the second ends at once.

    Only while there are steps to save: a rank that waits for others to join, or to leave, cannot
    look at a request, and would stay for as long as its launcher lets it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: object) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with stopping_when(stopping.is_set):
            yield
    except StopRequested:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
