"""Processes that train runs of a grid side by side: small steps on a GPU are bound by launches.

Each is a fresh process, since a process that is forked from one that has asked for a GPU has none.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.negatives.encoder_cells import RANKING, Run
from benchmarks.negatives.encoder_tasks import CachedRankingTask, TimedLoop, TokenTask
from benchmarks.negatives.encoder_tasks import wait as wait_for
from benchmarks.negatives.token_file import Tokens

Say = Callable[[str], None]
_TURNS, _STEPS_PER_TURN, _WARM_UP = 6, 12, 15
_LONGEST_TURN_S = 0.8


class _Measured:
    """A run whose steps are timed."""

    def __init__(self, loop: TimedLoop) -> None:
        self.loop = loop
        self.steps = loop.steps()
        self.turns: list[float] = []
        self.peak = 0
        self.held = 0  # bytes of weights, the optimizer's state and a cache

    def untrained(self) -> dict[str, Any]:
        return {split: self.loop.task.evaluate(split) for split in ("validation", "test")}


class Trainer:
    """Trains runs in this process.

    Args:
        sets: The file of tokens of each set, by name.
        model: A folder of sentence-transformers.
        max_tokens: Tokens per text.
        device: Where.
    """

    def __init__(self, sets: Mapping[str, Path], model: Path, max_tokens: int, device: str) -> None:
        self._sets, self._model = sets, model
        self._tokens: dict[str, Tokens] = {}
        self._max_tokens, self._device = max_tokens, device
        self._is_cuda = device.startswith("cuda")

    def train(self, run: Run) -> dict[str, Any]:
        """One run: its best validation, the test there, its time and the peak of its memory.

        The time is of a process beside others.
        """
        if self._is_cuda:
            torch.cuda.empty_cache()
        before = self._begin_memory()
        loop = self._loop(run)
        loop.begin()  # filling a cache is not a step
        wait_for(loop.device)
        started = time.perf_counter()
        for _ in loop.steps():
            pass
        wait_for(loop.device)
        return {
            "key": run.key,
            "run": asdict(run),
            "crowded_train_s": time.perf_counter() - started - loop.evaluating_s,
            "peak_bytes": self._peak() - before,
            "validation": loop.state.best,
            "test": loop.state.test,
        }

    def time_alone(self, runs: Mapping[str, Run]) -> dict[str, Any]:
        """Time and memory of steps, in turns: the median over turns; and untrained metrics.

        What fails is left out, and said in "failed".
        """
        measured: dict[str, _Measured] = {}
        failed: dict[str, str] = {}
        metrics: dict[str, Any] = {}
        for turn in range(1 + _TURNS):
            for name, run in runs.items():
                try:
                    if not turn:
                        before = self._begin_memory()
                        measured[name] = one = _Measured(self._loop(run))
                        if not metrics:
                            metrics = one.untrained()
                        self._take_turn(one, is_warm=False)
                        one.held = self._allocated() - before
                    elif name in measured:
                        self._take_turn(measured[name], is_warm=True)
                except Exception:
                    failed[name] = traceback.format_exc()
                    measured.pop(name, None)
        timed = {
            name: {"ms": median(one.turns), "turns_ms": one.turns,
                   "peak_bytes": one.held + one.peak}
            for name, one in measured.items()
        }  # fmt: skip
        return {"key": "timing", "timing": timed, "untrained": metrics, "failed": failed}

    def _take_turn(self, one: _Measured, is_warm: bool) -> None:
        before = self._begin_memory()
        wait_for(one.loop.device)
        started = time.perf_counter()
        num = 0
        while num < (_STEPS_PER_TURN if is_warm else _WARM_UP):
            next(one.steps)
            num += 1
            if num > 2 and time.perf_counter() - started > _LONGEST_TURN_S * (1 if is_warm else 3):
                break
        wait_for(one.loop.device)
        if is_warm:
            one.turns.append(1000 * (time.perf_counter() - started) / num)
            one.peak = max(one.peak, self._peak() - before)

    def _loop(self, run: Run) -> TimedLoop:
        config = run.config(self._model, self._max_tokens, self._device)
        torch.manual_seed(run.seed)
        if run.data not in self._tokens:
            self._tokens[run.data] = Tokens.read(self._sets[run.data])
        tokens = self._tokens[run.data]
        if run.method == RANKING:
            task: TokenTask = CachedRankingTask(config, tokens, run.mini_batch)
        else:
            task = TokenTask(config, tokens)
        return TimedLoop(task, config, run.is_trial)

    def _begin_memory(self) -> int:
        if not self._is_cuda:
            return 0
        torch.cuda.reset_peak_memory_stats()
        return self._allocated()

    def _allocated(self) -> int:
        return int(torch.cuda.memory_allocated()) if self._is_cuda else 0

    def _peak(self) -> int:
        return int(torch.cuda.max_memory_allocated()) if self._is_cuda else 0


class Workers:
    """A number of processes, each with one task at a time: a method of `Trainer` and its argument.

    Args:
        trainer: What they train with.
        num: How many.
    """

    def __init__(self, trainer: Trainer, num: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(num):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(trainer, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._idle = list(self._pipes)
        self._busy: dict[Connection, str] = {}

    @property
    def has_idle(self) -> bool:
        """Whether one can take a task."""
        return bool(self._idle)

    @property
    def at_work(self) -> set[str]:
        """The names of tasks that have begun and not ended."""
        return set(self._busy.values())

    def begin(self, name: str, method: str, argument: Any) -> None:
        """Give a task to an idle process."""
        pipe = self._idle.pop(0)
        pipe.send((method, argument))
        self._busy[pipe] = name

    def ended(self, timeout: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """The tasks that end within some seconds, after the first of them: name and result.

        The result of a task that failed is its "error".
        """
        for pipe in wait(list(self._busy), min(max(0.0, timeout), 3600.0)):
            assert isinstance(pipe, Connection)
            name = self._busy.pop(pipe)
            try:
                found = pipe.recv()
            except EOFError:
                found = {"error": "the process died"}  # and takes no further task
            else:
                self._idle.append(pipe)
            yield name, found

    def stop(self) -> None:
        """End them, whatever they are at."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()


def _serve(trainer: Trainer, pipe: Connection) -> None:
    torch.set_num_threads(1)
    import sentence_transformers  # noqa: F401  # while the first task is still to come

    while True:
        try:
            method, argument = pipe.recv()
        except EOFError:
            return
        try:
            found = getattr(trainer, method)(argument)
        except Exception:
            found = {"error": traceback.format_exc()}
        pipe.send(found)
