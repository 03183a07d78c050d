"""Grids of training runs in one process: finished cells are kept, and are not trained again."""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.runner import typed_command, write_page
from outsize.bench.runner import say_to_console
from outsize.files import write_text_atomically
from outsize.training import load_config, train

Cell = Mapping[str, Any]
Row = dict[str, Any]


def grid_parser(description: str | None, name: str, budgets: str) -> argparse.ArgumentParser:
    """The options that all grids have.

    Args:
        description: What the command does.
        name: The name of its folder for finished cells.
        budgets: The default budgets.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="the run file")
    parser.add_argument("--budgets", default=budgets, help="parameters per table, by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="override a setting")
    parser.add_argument("--work", type=Path, default=Path("runs") / name, help="finished cells")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument(
        "--part", type=_part, default=(1, 1), metavar="I/N",
        help="train every N-th cell from the I-th on and write no results; N processes that share "
        "--work divide a grid this way, and the command without it then writes the page",
    )  # fmt: skip
    return parser


def _part(text: str) -> tuple[int, int]:
    number, _, total = text.partition("/")
    found = int(number), int(total)
    if not 1 <= found[0] <= found[1]:
        raise ValueError(text)
    return found


def train_grid(
    cells: Sequence[Cell],
    one: Callable[[Cell], Row],
    work: Path,
    part: tuple[int, int] = (1, 1),
    say: Callable[[str], None] | None = None,
) -> list[Row]:
    """The rows of all cells, in their order; what is in `work` is not trained again.

    Args:
        cells: What each run is, as JSON values.
        one: Trains one cell and returns what it measured.
        work: Folder of finished cells.
        part: (i, n) to train every n-th cell from the i-th on; nothing is returned for others.
        say: Shows progress; by default on standard error.
    """
    say = say or say_to_console()
    torch.set_num_threads(1)
    rows = []
    for number, cell in list(enumerate(cells, start=1))[part[0] - 1 :: part[1]]:
        digest = hashlib.sha256(json.dumps(cell, sort_keys=True).encode()).hexdigest()[:16]
        path = work / f"{digest}.json"
        if path.exists():
            found = json.loads(path.read_text())
        else:
            found = one(cell)
            work.mkdir(parents=True, exist_ok=True)
            write_text_atomically(path, json.dumps(found))
            said = ", ".join(str(cell[key]) for key in ("variant", "budget", "seed") if key in cell)
            say(f"{number}/{len(cells)}  {said}: AUC {found['auc']:.4f}")
        rows.append({**cell, **found})
    return rows


def trained(run: str | Path, settings: Sequence[str]) -> Row:
    """Train a run; its test metrics at the best validation, and how far it got."""
    result = train(load_config(run, list(settings)), quiet=True)
    return {
        "loss": result.test["loss"],
        "auc": result.test["auc"],
        "validation_auc": result.best["auc"],
        "best_step": result.best["step"],
        "steps": result.steps,
        "elapsed_s": round(result.elapsed_s, 3),
    }


def budgets_of(arguments: argparse.Namespace) -> list[int]:
    """The budgets that were asked for."""
    return [int(word) for word in arguments.budgets.split(",")]


def steps_per_epoch(run: str | Path, settings: Sequence[str]) -> int:
    """Steps of one pass over the training data."""
    config = load_config(run, list(settings))
    data: Any = config.data.build()
    return int(data.num_batches("train", config.train.batch_size))


def mean_and_range(rows: Sequence[Row], name: str) -> str:
    """The mean of a metric over seeds, and its range."""
    values = [row[name] for row in rows]
    return f"{statistics.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def write_grid(
    arguments: argparse.Namespace,
    name: str,
    title: str,
    module: str,
    rows: Sequence[Row],
    body: Callable[[Sequence[Row]], str],
) -> None:
    """Write the results files of a grid, unless only a part of it was trained.

    Args:
        arguments: What `grid_parser` has read.
        name: Their name, without the device.
        title: The title of the page.
        module: The script, such as `benchmarks.cce.schedules`.
        rows: What was measured.
        body: Makes the page below its head.
    """
    if arguments.part[1] == 1:
        command = typed_command(module)
        write_page(name, title, command, body(rows), arguments.out, rows=list(rows))
