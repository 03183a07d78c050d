"""From the path of data to a run file."""

from __future__ import annotations

from pathlib import Path

from outsize.errors import ConfigError, DataError
from outsize.files import whole_file
from outsize.registries import require_known
from outsize.suggest.labels import Label
from outsize.suggest.pairs import find_edge_ends, find_pair, suggest_retrieval_run
from outsize.suggest.run_file import run_file_text
from outsize.suggest.sample import read_sample
from outsize.suggest.suggestion import (
    Suggestion,
    Wishes,
    find_label_in,
    is_named_as_label,
    read_profiles,
    require_columns,
    suggest_click_run,
)
from outsize.training import load_config

TASKS = ("auto", "click", "retrieval")
_LEAST_ROWS = 30


def suggest_run(
    data: str | Path,
    wishes: Wishes | None = None,
    *,
    task: str = "auto",
    query: str | None = None,
    item: str | None = None,
) -> Suggestion:
    """Suggest a run for a file of data, from a bounded sample of its rows.

    Args:
        data: A CSV, TSV or Parquet file, a pattern of such files, or a folder of them.
        wishes: What is known about the columns.
        task: "click" predicts a label, "retrieval" trains on pairs of queries and items; "auto"
            takes pairs if the columns are named as such and none as a label is.
        query: The column of queries, for retrieval.
        item: The column of items, for retrieval.
    """
    wishes = Wishes() if wishes is None else wishes
    require_known("--task", task, TASKS)
    if (query is not None or item is not None) and task == "auto":
        task = "retrieval"
    if task == "retrieval" and wishes.label is not None:
        raise ConfigError("--label belongs to click data, but the task is retrieval: give one")
    sample = read_sample(str(data))
    if sample.total_rows < _LEAST_ROWS:
        rows = "row" if sample.total_rows == 1 else "rows"
        raise DataError(
            f"{data} has {sample.total_rows} {rows}: name data of at least {_LEAST_ROWS}, for a "
            "part of them is held out to validate, and a part to test"
        )
    require_columns(sample, "--drop", wishes.drop)
    require_columns(sample, "--keep", wishes.keep)
    if both := set(wishes.drop) & {*wishes.keep, wishes.label, wishes.time, query, item}:
        raise ConfigError(f"--drop {min(map(str, both))} is asked for elsewhere too: choose one")
    profiles = read_profiles(sample, wishes.drop)
    if task == "auto" and wishes.label is None and (ends := find_edge_ends(profiles)):
        raise DataError(
            f"{data}: columns {ends[0]!r} and {ends[1]!r} look like the ends of edges: for a "
            'graph, write a run file with kind = "edges" (docs/graph-data.md); for clicks, say '
            "--label COLUMN"
        )
    if task == "auto" and wishes.label is None and not is_named_as_label(profiles):
        task = "retrieval" if find_pair(profiles) else "click"
    if task == "retrieval":
        return suggest_retrieval_run(sample, profiles, wishes, (query, item))
    label: Label | None = find_label_in(profiles, wishes)
    if label is None:
        raise DataError(
            f"{data}: no column is named label, click or target, and none has two values: say "
            "which is the label, --label COLUMN, with --positive VALUE if it has more, or "
            "--task retrieval for pairs"
        )
    return suggest_click_run(sample, profiles, wishes, label)


def require_writable(path: Path, force: bool) -> None:
    """Refuse to replace a file unless asked to."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name a file, --out RUN.toml")
    if path.exists() and not force:
        raise ConfigError(f"{path} exists: replace it with --force, or name another with --out")
    if not path.parent.is_dir():
        raise ConfigError(
            f"{path.parent}: no such folder; make it, or name another file with --out"
        )


def write_run_file(suggestion: Suggestion, path: Path, command: str, force: bool = False) -> None:
    """Write a suggestion as a run file, whole or not at all, and read it back.

    Args:
        suggestion: The run.
        path: The file.
        command: The command that made it, for the file's first line.
        force: Whether a file that is there is replaced.
    """
    require_writable(path, force)
    with whole_file(path) as file:
        file.write(run_file_text(suggestion, command, str(path)).encode())
        file.flush()
        load_config(file.name)
