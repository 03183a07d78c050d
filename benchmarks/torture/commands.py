"""Commands that read a trained run: what each reads and writes, and whether it did so as before."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.torture.children import call
from benchmarks.torture.runs import TABULAR, write_clicks, write_run
from benchmarks.torture.trial import Trial, require
from outsize.checkpoint import list_checkpoints

_GRID = ("--tables", "hash,cce", "--budgets", "64", "--seeds", "1", "--workers", "0")
_DATED = ("README.md", "card.json")


@dataclass(frozen=True)
class Command:
    """A command of the base.

    Attributes:
        words: The command.
        out: What it writes.
        reads: What it reads.
        require_same: Fails the trial unless two outputs are the same.
    """

    words: tuple[str, ...]
    out: str
    reads: tuple[str, ...]
    require_same: Callable[[Path, Path], None]


def _same_bytes(one: Path, other: Path) -> None:
    require(one.read_bytes() == other.read_bytes(), f"{one.name} differs")


def same_export(one: Path, other: Path) -> None:
    """Fail the trial unless two exports are the same but for their dates."""
    for path in other.iterdir():
        if path.name not in _DATED:
            _same_bytes(one / path.name, path)


def same_grid(one: Path, other: Path) -> None:
    """Fail the trial unless two comparisons measured the same."""
    for path in (other / "cells").glob("*/result.json"):
        mine, theirs = (
            json.loads(found.read_text()) for found in (one / path.relative_to(other), path)
        )
        for metrics in ("validation", "test"):
            require(mine.get(metrics) == theirs.get(metrics), f"{path.parent.name} differs")


_DATA = ("clicks.csv", ".outsize-cache", "run.toml")
COMMANDS = {
    "export": Command(("export", "run", "exported"), "exported", (*_DATA, "run"), same_export),
    "predict": Command(
        ("predict", "exported", "clicks.csv", "--out", "scores.parquet"),
        "scores.parquet", ("clicks.csv", "exported"), _same_bytes,
    ),
    "predict to CSV": Command(
        ("predict", "exported", "clicks.csv", "--out", "scores.csv", "--keep", "user"),
        "scores.csv", ("clicks.csv", "exported"), _same_bytes,
    ),
    "compare": Command(
        ("compare", "run.toml", *_GRID, "--out", "grid", "--set", "train.steps=6"),
        "grid", _DATA, same_grid,
    ),
}  # fmt: skip


def trained(trial: Trial) -> Path:
    """A folder with a run on a click log, and its export."""

    def make(folder: Path) -> None:
        write_clicks(folder / "clicks.csv", 1_500)
        write_run(folder / "run.toml", TABULAR)
        call(folder, "train", "run.toml", "--out", "run", "--json").must_end_well()
        call(folder, "export", "run", "exported").must_end_well()

    return trial.base("trained", make)


def done_by(trial: Trial, name: str) -> Path:
    """A folder with what a command reads and writes, and the seconds it took."""
    base = trained(trial)

    def make(folder: Path) -> None:
        copy_inputs(name, base, folder)
        started = time.monotonic()
        call(folder, *COMMANDS[name].words).must_end_well()
        (folder / "seconds").write_text(str(time.monotonic() - started))

    return trial.base(f"done-{name.replace(' ', '-')}", make)


def stopped(trial: Trial) -> Path:
    """A folder with the run, and the same run half-way with its export."""
    base = trained(trial)

    def make(folder: Path) -> None:
        for part in (*_DATA, "run"):
            copy(base / part, folder / part)
        make_stopped(folder)

    return trial.base("stopped", make)


def make_stopped(folder: Path) -> None:
    """Copy a run as it was after two checkpoints, and export it."""
    shutil.copytree(folder / "run", folder / "stopped")
    for later in list_checkpoints(folder / "stopped" / "checkpoint")[2:]:
        shutil.rmtree(later)
    call(folder, "export", "stopped", "exported-stopped").must_end_well()


def copy(source: Path, target: Path) -> None:
    """Copy a file or a folder, with the times of files."""
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


def copy_inputs(name: str, base: Path, folder: Path) -> None:
    """Copy what a command reads."""
    for part in COMMANDS[name].reads:
        copy(base / part, folder / part)


def finish(name: str, folder: Path) -> None:
    """Repeat a command that was disturbed, unless it had done all of its work."""
    command = COMMANDS[name]
    if name != "export" or not (folder / command.out).exists():  # only an export refuses to replace
        call(folder, *command.words).must_end_well()


def require_same(name: str, folder: Path, base: Path) -> None:
    """Fail the trial unless a command wrote what it wrote in the base, and nothing else."""
    left = [path.name for path in folder.rglob("*partial*")]
    require(not left, f"left behind: {left}")
    out = COMMANDS[name].out
    COMMANDS[name].require_same(folder / out, base / out)
