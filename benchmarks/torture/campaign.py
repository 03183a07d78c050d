"""Trials in turns, several at a time, until the time is used up or all are done."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.torture.kinds import KINDS, PER_TURN
from benchmarks.torture.trial import (
    FAILED,
    OUTCOMES,
    SKIPPED,
    Ended,
    Trial,
    TrialFailed,
    TrialSkipped,
)

_POLL_S = 0.02
_LONGEST_S = 300.0  # commands inside have limits of their own; this one is for the trial's code


@dataclass
class _Running:
    """A trial in its process."""

    trial: Trial
    pid: int
    started: float


class Campaign:
    """Runs trials.

    Args:
        folder: An empty folder for the files of trials.
        seed: The seed of all choices.
        jobs: Trials at a time.
        say: Called with a line for each trial that fails, and with the counts now and then.
    """

    def __init__(self, folder: Path, seed: int, jobs: int, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._shared = folder / "shared"
        self._shared.mkdir()
        self._seed = seed
        self._jobs = jobs
        self._say = say
        self._said_at = 0.0
        self.ended: list[Ended] = []

    def run(self, numbers: Sequence[tuple[str, int]], seconds: float) -> None:
        """Run trials, the kinds in turns, until they are done or the time is used up.

        Args:
            numbers: Kind and number of each trial, in order.
            seconds: No trial starts after so many seconds.
        """
        started = time.monotonic()
        waiting = list(numbers)
        running: list[_Running] = []
        try:
            while running or waiting:
                is_over = time.monotonic() - started > seconds
                if is_over:
                    waiting.clear()
                while waiting and len(running) < self._jobs:
                    running.append(self._start(*waiting.pop(0)))
                for one in list(running):
                    if (ended := self._poll(one)) is not None:
                        running.remove(one)
                        self._take(ended)
                self._show(started, len(running))
                time.sleep(_POLL_S)
        finally:
            for one in running:
                _end_group(one.pid)

    def _start(self, kind: str, number: int) -> _Running:
        folder = self._folder / f"{kind}-{number:04d}"
        folder.mkdir()
        trial = Trial(kind, self._seed, number, folder, self._shared)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            code = 1
            try:
                _run_trial(trial)
                code = 0
            finally:
                os._exit(code)
        return _Running(trial, pid, time.monotonic())

    def _poll(self, one: _Running) -> Ended | None:
        """How a trial ended, if it has."""
        pid, _ = os.waitpid(one.pid, os.WNOHANG)
        elapsed_s = time.monotonic() - one.started
        trial = one.trial
        if not pid:
            if elapsed_s < _LONGEST_S:
                return None
            _end_group(one.pid)
            os.waitpid(one.pid, 0)
            return Ended(trial.kind, trial.number, FAILED, "", "the trial hung", elapsed_s)
        _end_group(one.pid)
        try:
            facts = json.loads((trial.folder / "outcome.json").read_text())
        except OSError:
            facts = {"outcome": FAILED, "what": "", "words": "the trial's own process died"}
        return Ended(trial.kind, trial.number, **facts, elapsed_s=round(elapsed_s, 2))

    def _take(self, ended: Ended) -> None:
        self.ended.append(ended)
        if ended.outcome == FAILED:
            again = f"--seed {self._seed} --only {ended.kind} --trial {ended.number}"
            self._say(f"FAILED {ended.kind} {ended.number}: {ended.what}: {ended.words}")
            self._say(f"  repeat it: python -m benchmarks.torture {again}")
        else:
            shutil.rmtree(self._folder / f"{ended.kind}-{ended.number:04d}", ignore_errors=True)

    def _show(self, started: float, num_running: int) -> None:
        now = time.monotonic()
        if now - self._said_at > 10 or not num_running:
            self._said_at = now
            counts = Counter(one.outcome for one in self.ended)
            words = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)
            self._say(f"{now - started:4.0f} s  {len(self.ended)} tried: {words}")


def _run_trial(trial: Trial) -> None:
    """In the trial's process: run it and write down how it ended."""
    described: list[str] = []
    words = ""
    random.seed(0)
    try:
        outcome, words = KINDS[trial.kind](trial, described.append)
    except TrialSkipped as reason:
        outcome, words = SKIPPED, str(reason)
    except TrialFailed as reason:
        outcome, words = FAILED, str(reason)
    except BaseException:
        outcome, words = FAILED, traceback.format_exc()
    found = {"outcome": outcome, "what": ", ".join(described), "words": words}
    (trial.folder / "outcome.json").write_text(json.dumps(found))


def _end_group(pid: int) -> None:
    """Kill a trial and all processes that it left behind."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def in_turns(kinds: Sequence[str], count: int) -> list[tuple[str, int]]:
    """Kind and number of `count` trials of each kind, the kinds taking turns."""
    found: list[tuple[str, int]] = []
    for turn in range(count):
        for kind in kinds:
            size = PER_TURN.get(kind, 1)
            found += [(kind, n) for n in range(turn * size, (turn + 1) * size) if n < count]
    return found


def as_dicts(ended: Sequence[Ended]) -> list[dict[str, object]]:
    """How trials ended, by kind and number."""
    return [asdict(one) for one in sorted(ended, key=lambda one: (one.kind, one.number))]
