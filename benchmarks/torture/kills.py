"""Kills at random moments: what was killed goes on, and ends as if it had not been."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.torture.children import Child, Done, Ranks
from benchmarks.torture.commands import COMMANDS, copy_inputs, done_by, finish, require_same
from benchmarks.torture.runs import require_equal
from benchmarks.torture.scenarios import SCENARIOS, go_on, prepare, reference_of
from benchmarks.torture.trial import SURVIVED, Trial, require

_POLL_S = 0.005
_LAUNCHER_S = 1.0  # how long after a rank has failed a launcher ends the others


@dataclass(frozen=True)
class Moment:
    """When to kill: so many seconds after the log has so many lines."""

    after_lines: int = 0
    after_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.after_lines} lines + {self.after_s:.2f} s"


def run(trial: Trial, describe: Callable[[str], None]) -> tuple[str, str]:
    """Kill a command once or more, repeat it, and compare what it leaves with the undisturbed."""
    ways: list[Callable[[Trial, Callable[[str], None]], None]] = [
        _kill_training,
        _kill_training,
        _kill_command,
    ]
    ways[trial.number % len(ways)](trial, describe)
    return SURVIVED, ""


def _kill_training(trial: Trial, describe: Callable[[str], None]) -> None:
    name = trial.draw.choice(list(SCENARIOS))
    scenario = SCENARIOS[name]
    num_ranks = trial.draw.choice(scenario.ranks)
    describe(f"{name}, {num_ranks} ranks")

    reference = reference_of(trial, name, num_ranks)
    seconds = float((reference / "seconds").read_text())
    words = prepare(trial.folder, scenario)
    num_lines = _num_lines(reference / "run" / "metrics.jsonl")
    log = trial.folder / "run" / "metrics.jsonl"
    for _ in range(trial.draw.choice([1, 1, 2, 3])):
        victim = trial.draw.choice([None, *range(num_ranks)]) if num_ranks > 1 else None
        who = "all" if victim is None else f"rank {victim}"
        share = trial.draw.uniform(0.0, 1.0)
        if trial.draw.random() < 0.4:
            moment = Moment(after_s=share * seconds)
        else:  # while it trains, which is the smaller part of so short a run
            written = _num_lines(log)
            lines = written + math.ceil(share * (num_lines - written))
            moment = Moment(after_lines=lines, after_s=trial.draw.uniform(0.0, 0.1))
        describe(f"{who} killed at {moment}")
        _kill_once(num_ranks, go_on(words, trial.folder), trial.folder, moment, victim)
    for done in Ranks(num_ranks, go_on(words, trial.folder), trial.folder).done(120):
        done.must_end_well()
    require_equal(trial.folder / "run", reference / "run")


def _kill_once(
    num_ranks: int, words: list[str], folder: Path, moment: Moment, victim: int | None
) -> None:
    """Kill one rank or all; the others must end within a minute and without a traceback."""
    log = folder / "run" / "metrics.jsonl"
    before = _size_and_time(log)
    ranks = Ranks(num_ranks, words, folder)
    while _num_lines(log) < moment.after_lines and ranks.ranks[0].poll() is None:
        time.sleep(_POLL_S)
    time.sleep(moment.after_s)
    has_begun = _size_and_time(log) != before
    killed = [victim] if victim is not None else list(range(num_ranks))
    hit = [number for number in killed if ranks.ranks[number].kill()]
    if victim is not None and hit and not has_begun:
        # Ranks that wait for others to join are ended by their launcher.
        time.sleep(_LAUNCHER_S)
        for rank in ranks.ranks:
            rank.kill(signal.SIGTERM)
    for number, done in enumerate(ranks.done()):
        done.must_not_crash(killed=number in hit or (bool(hit) and not has_begun))
        if number not in hit and has_begun and hit and victim is not None:
            _require_a_line(done)


def _num_lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def _size_and_time(path: Path) -> tuple[int, int]:
    if not path.exists():
        return 0, 0
    facts = path.stat()
    return facts.st_size, facts.st_mtime_ns


def _require_a_line(done: Done) -> None:
    require(
        done.code == 0 or bool(done.refusal),
        f"a rank that lost another ended with {done.code}: {done.err[-600:]}",
    )


def _kill_command(trial: Trial, describe: Callable[[str], None]) -> None:
    """Kill a command once or twice in a copy of the base, then let it finish."""
    name = trial.draw.choice(list(COMMANDS))
    base = done_by(trial, name)
    copy_inputs(name, base, trial.folder)
    seconds = float((base / "seconds").read_text())
    for _ in range(trial.draw.choice([1, 2])):
        moment = trial.draw.uniform(0.0, 1.0) * seconds
        describe(f"{name} killed after {moment:.2f} s")
        child = Child(COMMANDS[name].words, trial.folder)
        time.sleep(moment)
        killed = child.kill()
        child.done().must_not_crash(killed=killed)
    finish(name, trial.folder)
    require_same(name, trial.folder, base)
