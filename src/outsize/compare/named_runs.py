"""Runs with their names, logs and configurations, for pages that show several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outsize.errors import ConfigError
from outsize.training.config import RunConfig
from outsize.training.report.history import RunHistory
from outsize.training.report.run_page import history_of
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import encode, flatten


@dataclass(frozen=True)
class NamedRun:
    """A run of a page.

    Attributes:
        name: How the page calls it; no other run of the page has this name.
        folder: Where it is.
        config: Its configuration.
        history: Its log.
    """

    name: str
    folder: RunFolder
    config: RunConfig
    history: RunHistory

    @property
    def task(self) -> str:
        """What it trains: losses of one task are of one kind."""
        if self.config.graph is not None:
            return f"{self.config.task}, {self.config.graph.predict}"
        return self.config.task


def read_runs(folders: Sequence[Path]) -> list[NamedRun]:
    """Runs by folder, in the order given; a folder that is named twice is read once."""
    paths = list({path.resolve(): path for path in folders}.values())
    found = []
    for path, name in zip(paths, short_names([path.resolve() for path in paths]), strict=True):
        if path.suffix == ".toml" and path.is_file():
            raise ConfigError(
                f"{path} is a run file: name the folder that outsize train has written"
            )
        folder = RunFolder(path)
        history = history_of(folder)
        found.append(NamedRun(name, folder, folder.config(), history))
    return found


def short_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of different paths, as few as tell them apart."""
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def config_differences(runs: Sequence[NamedRun]) -> dict[str, list[Any]]:
    """Keys of run files whose values are not the same in all runs, with the value of each run.

    A key that a run does not have is `None` there.
    """
    trees = [flatten(encode(run.config)) for run in runs]
    keys = dict.fromkeys(key for tree in trees for key in tree)
    values = {key: [tree.get(key) for tree in trees] for key in keys}
    return {key: own for key, own in values.items() if any(value != own[0] for value in own)}
