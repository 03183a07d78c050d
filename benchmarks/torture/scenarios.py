"""Runs of the campaign: what they train, and on how many ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.torture.children import Ranks
from benchmarks.torture.runs import (
    CACHED,
    CLICKS,
    CLUSTERED,
    LONGER,
    RETRIEVAL,
    SHORTER,
    TABULAR,
    write_clicks,
    write_run,
)
from benchmarks.torture.trial import Trial


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
    "retrieval with cached negatives": Scenario(RETRIEVAL, LONGER, (1, 2, 4)),
    "retrieval over shards": Scenario(RETRIEVAL, (*LONGER, "embeddings.store=sharded"), (2,)),
    "click with encoding": Scenario(TABULAR, (), (1, 2), num_rows=20_000),
}


def prepare(folder: Path, scenario: Scenario) -> list[str]:
    """Write the files of a scenario; the command that runs it."""
    settings = write_run(folder / "run.toml", scenario.text, *scenario.settings)
    if scenario.num_rows:
        write_clicks(folder / "clicks.csv", scenario.num_rows)
    return ["train", "run.toml", "--out", "run", "--json", *settings]


def go_on(words: list[str], folder: Path) -> list[str]:
    """The command, with `--resume` if there is a run."""
    return [*words, "--resume"] if (folder / "run" / "config.toml").exists() else words


def reference_of(trial: Trial, name: str, num_ranks: int) -> Path:
    """A folder with the undisturbed run of a scenario, and the seconds it took."""

    def make(folder: Path) -> None:
        words = prepare(folder, SCENARIOS[name])
        started = time.monotonic()
        for done in Ranks(num_ranks, words, folder).done(120):
            done.must_end_well()
        (folder / "seconds").write_text(str(time.monotonic() - started))

    return trial.base(f"{name} {num_ranks}".replace(" ", "-"), make)
