"""When to cluster: number, interval and end of the clusterings, Figures 8 and 10 of the CCE text.

    python -m benchmarks.cce.schedules RUN.toml --budgets 8192 --seeds 3

A schedule is "ct N cf E": N clusterings, E epochs apart, so that the last comes after N · E epochs.
The text finds in one epoch that clusterings should end by its middle (strategy 1) rather than by
two thirds of it (strategy 2), in ten that one per epoch is best, and that clustering in the middle
of the first epoch ("half") is a little worse than at its end. Finished cells are kept in `--work`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path

from benchmarks.cce.grid import (
    Cell,
    Row,
    budgets_of,
    grid_parser,
    mean_and_range,
    steps_per_epoch,
    train_grid,
    trained,
    write_grid,
)
from outsize.data import SyntheticConfig
from outsize.training import load_config

Schedule = tuple[int, Fraction]
"""The number of clusterings, and epochs between them."""

_QUARTER, _HALF, _LATE, _LAST = (Fraction(*end) for end in ((1, 4), (1, 2), (2, 3), (9, 10)))

ONE_EPOCH: tuple[Schedule, ...] = (
    (1, _QUARTER),
    *((number, _HALF / number) for number in (1, 2, 4)),
    *((number, end / number) for end in (_LATE, _LAST) for number in (1, 2)),
)
"""Clusterings that end at a quarter, the middle, two thirds and nine tenths of the epoch."""

MANY_EPOCHS: tuple[Schedule, ...] = (
    *((number, interval) for interval in (_HALF, Fraction(1)) for number in (1, 2, 6)),
    (2, Fraction(3)),
    (1, Fraction(8)),
)
"""Clusterings half an epoch apart, one and three; and a single late one."""


def schedules_of(num_epochs: int) -> tuple[Schedule, ...]:
    """The schedules that a run is trained with."""
    return ONE_EPOCH if num_epochs == 1 else MANY_EPOCHS


def name_of(schedule: Schedule) -> str:
    """A schedule as in the paper, with epochs for batches."""
    return f"ct {schedule[0]} cf {schedule[1]}"


def settings_of(schedule: Schedule, num_steps: int) -> list[str]:
    """The settings of a schedule.

    Args:
        schedule: The schedule.
        num_steps: Steps per epoch.
    """
    number, interval = schedule
    every = max(1, int(interval * num_steps))
    own = {"count": number, "every": every, "rest": 0.0}
    return [f"embeddings.recluster.{name}={value}" for name, value in own.items()]


def one_cell(num_steps: int, cell: Cell) -> Row:
    """Train a schedule at a budget with a seed."""
    number, interval = cell["count"], Fraction(cell["interval"])
    tables = ["embeddings.kind=tables", "embeddings.method=cce"]
    size = [f"embeddings.max_params={cell['budget']}", f"seed={cell['seed']}"]
    own = settings_of((number, interval), num_steps)
    return trained(cell["run"], [*cell["settings"], *tables, *size, *own])


def main() -> None:
    """Train the grid and write its page."""
    arguments = grid_parser(__doc__, "cce-schedules", "8192").parse_args()
    config = load_config(arguments.run, arguments.set)
    schedules = schedules_of(config.train.epochs)
    cells = [
        {"run": arguments.run, "settings": arguments.set, "variant": name_of((number, interval)),
         "count": number, "interval": str(interval), "budget": budget, "seed": seed}
        for seed in range(arguments.seeds) for budget in budgets_of(arguments)
        for number, interval in schedules
    ]  # fmt: skip
    num_steps = steps_per_epoch(arguments.run, arguments.set)
    rows = train_grid(cells, partial(one_cell, num_steps), arguments.work, arguments.part)
    stem = Path(arguments.run).stem
    title = f"When to cluster: {Path(arguments.run).name}"
    body = partial(table, config.train.epochs, isinstance(config.data, SyntheticConfig))
    write_grid(arguments, f"cce-schedules-{stem}", title, "benchmarks.cce.schedules", rows, body)


def table(num_epochs: int, planted: bool, rows: Sequence[Row]) -> str:
    """The results as Markdown.

    Args:
        num_epochs: Epochs of a run.
        planted: Whether the data is synthetic.
        rows: What was measured.
    """
    seeds = sorted({row["seed"] for row in rows})
    budgets = list(dict.fromkeys(row["budget"] for row in rows))
    log = "The log is synthetic, and its ids have planted clusters. " if planted else ""
    lines = [
        f"{log}ct: number of clusterings; cf: epochs between them; the last is after ct · cf of "
        f"{num_epochs} epochs. Test BCE and AUC at the best validation, mean (range) of the seeds "
        f"{', '.join(map(str, seeds))}; caps in parameters per table.\n",
        "| ct | cf | last after | "
        + " | ".join(f"BCE at {budget:,} | AUC at {budget:,}" for budget in budgets) + " |",
        "|--:|--:|--:|" + "--:|--:|" * len(budgets),
    ]  # fmt: skip
    for number, interval in schedules_of(num_epochs):
        found = [row for row in rows if row["variant"] == name_of((number, interval))]
        numbers = []
        for budget in budgets:
            same = [row for row in found if row["budget"] == budget]
            numbers += [mean_and_range(same, "loss"), mean_and_range(same, "auc")]
        lines.append(f"| {number} | {interval} | {number * interval} | {' | '.join(numbers)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
