"""Kills at random moments: what was killed goes on, and ends as if it had not been."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.torture.children import Child, Done, Ranks, call
from benchmarks.torture.runs import (
    CACHED,
    CLICKS,
    CLUSTERED,
    RETRIEVAL,
    SHORTER,
    TABULAR,
    require_equal,
    write_clicks,
    write_run,
)
from benchmarks.torture.trial import SURVIVED, Trial, require
from outsize.export import load_exported

_LAUNCHER_S = 1.0  # how long after a rank has failed a launcher ends the others
_GRID = ("--tables", "hash,cce", "--budgets", "64", "--seeds", "1", "--workers", "0")


@dataclass(frozen=True)
class Scenario:
    """A run that is killed.

    Attributes:
        text: The run file.
        settings: What is set besides.
        ranks: The numbers of ranks it is tried with.
        num_rows: Rows of its `clicks.csv`, if it reads one.
    """

    text: str
    settings: tuple[str, ...]
    ranks: tuple[int, ...]
    num_rows: int = 0


SCENARIOS = {
    "click over cached shards": Scenario(CLICKS, (*SHORTER, *CACHED), (1, 2, 4)),
    "click with clustered tables": Scenario(CLICKS, (*SHORTER, *CLUSTERED), (1, 2)),
    "retrieval with cached negatives": Scenario(RETRIEVAL, (), (1, 2, 4)),
    "retrieval over shards": Scenario(RETRIEVAL, ("embeddings.store=sharded",), (2,)),
    "click with encoding": Scenario(TABULAR, (), (1, 2), num_rows=20_000),
}


def run(trial: Trial, describe: Callable[[str], None]) -> tuple[str, str]:
    """Kill a command once or more, repeat it, and compare what it leaves with the undisturbed."""
    ways: list[Callable[[Trial, Callable[[str], None]], None]] = [
        _kill_training, _kill_training, _kill_training, _kill_export, _kill_compare, _kill_predict,
    ]  # fmt: skip
    ways[trial.number % len(ways)](trial, describe)
    return SURVIVED, ""


def _kill_training(trial: Trial, describe: Callable[[str], None]) -> None:
    name = trial.draw.choice(list(SCENARIOS))
    scenario = SCENARIOS[name]
    num_ranks = trial.draw.choice(scenario.ranks)
    describe(f"{name}, {num_ranks} ranks")

    def make(folder: Path) -> None:
        words = _prepare(folder, scenario)
        started = time.monotonic()
        for done in Ranks(num_ranks, words, folder).done(120):
            done.must_end_well()
        (folder / "seconds").write_text(str(time.monotonic() - started))

    reference = trial.base(f"{name} {num_ranks}".replace(" ", "-"), make)
    seconds = float((reference / "seconds").read_text())
    words = _prepare(trial.folder, scenario)
    for _ in range(trial.draw.choice([1, 1, 2, 3])):
        moment = trial.draw.uniform(0.0, 1.0) * seconds
        victim = trial.draw.choice([None, *range(num_ranks)]) if num_ranks > 1 else None
        describe(f"{'all' if victim is None else f'rank {victim}'} killed after {moment:.2f} s")
        _kill_once(num_ranks, _go_on(words, trial.folder), trial.folder, moment, victim)
    for done in Ranks(num_ranks, _go_on(words, trial.folder), trial.folder).done(120):
        done.must_end_well()
    require_equal(trial.folder / "run", reference / "run")


def _prepare(folder: Path, scenario: Scenario) -> list[str]:
    """Write the files of a scenario; the command that runs it."""
    settings = write_run(folder / "run.toml", scenario.text, *scenario.settings)
    if scenario.num_rows:
        write_clicks(folder / "clicks.csv", scenario.num_rows)
    return ["train", "run.toml", "--out", "run", "--json", *settings]


def _go_on(words: list[str], folder: Path) -> list[str]:
    """The command, with `--resume` if there is a run."""
    return [*words, "--resume"] if (folder / "run" / "config.toml").exists() else words


def _kill_once(
    num_ranks: int, words: list[str], folder: Path, moment: float, victim: int | None
) -> None:
    """Kill one rank or all; the others must end within a minute and without a traceback."""
    log = folder / "run" / "metrics.jsonl"
    before = _size_and_time(log)
    ranks = Ranks(num_ranks, words, folder)
    time.sleep(moment)
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


def _base(folder: Path) -> None:
    """A run on a click log, and what other commands make of it."""
    words = _prepare(folder, Scenario(TABULAR, (), (1,), num_rows=1_500))
    call(folder, *words).must_end_well()
    for name, command in _COMMANDS.items():
        started = time.monotonic()
        call(folder, *command).must_end_well()
        (folder / f"{name}-seconds").write_text(str(time.monotonic() - started))


_COMMANDS = {
    "export": ("export", "run", "exported"),
    "predict": ("predict", "exported", "clicks.csv", "--out", "scores.parquet"),
    "compare": ("compare", "run.toml", *_GRID, "--out", "grid", "--set", "train.steps=6"),
}


def _kill_command(trial: Trial, describe: Callable[[str], None], name: str, out: str) -> Path:
    """Kill a command once or twice in a copy of the base, then let it finish; the base."""
    base = trial.base("commands", _base)
    shutil.copytree(base, trial.folder, dirs_exist_ok=True)
    target = trial.folder / out
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    seconds = float((base / f"{name}-seconds").read_text())
    for _ in range(trial.draw.choice([1, 2])):
        moment = trial.draw.uniform(0.0, 1.0) * seconds
        describe(f"{name} killed after {moment:.2f} s")
        child = Child(_COMMANDS[name], trial.folder)
        time.sleep(moment)
        killed = child.kill()
        child.done().must_not_crash(killed=killed)
    if name == "compare" or not target.exists():
        call(trial.folder, *_COMMANDS[name]).must_end_well()
    left = [path.name for path in trial.folder.glob("*partial*")]
    require(not left, f"left behind: {left}")
    return base


def _kill_export(trial: Trial, describe: Callable[[str], None]) -> None:
    base = _kill_command(trial, describe, "export", "exported")
    load_exported(trial.folder / "exported")
    for path in (base / "exported").iterdir():
        same = path.read_bytes() == (trial.folder / "exported" / path.name).read_bytes()
        require(same or path.name in ("card.json", "README.md"), f"{path.name} differs")


def _kill_predict(trial: Trial, describe: Callable[[str], None]) -> None:
    base = _kill_command(trial, describe, "predict", "scores.parquet")
    same = (base / "scores.parquet").read_bytes() == (trial.folder / "scores.parquet").read_bytes()
    require(same, "the scores differ")


def _kill_compare(trial: Trial, describe: Callable[[str], None]) -> None:
    base = _kill_command(trial, describe, "compare", "grid")
    for path in (base / "grid" / "cells").glob("*/result.json"):
        other = trial.folder / path.relative_to(base)
        mine, theirs = (json.loads(found.read_text()) for found in (other, path))
        for metrics in ("validation", "test"):
            require(mine.get(metrics) == theirs.get(metrics), f"{path.parent.name} differs")
