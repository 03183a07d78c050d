"""What every stop shows: what it is about, a table of results, times, links to its runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from outsize.reporting.page import card
from outsize.reporting.quantities import format_seconds
from outsize.training.report import RunHistory


def introduce(console: Console, title: str, text: str) -> None:
    """Say what a stop does, before it does it."""
    console.print(Panel(text, title=title, width=min(88, console.width)))


def print_table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """What came out, a row for each run; the first column has the names."""
    table = Table(title="What came out", title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def time_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The seconds of training of a run as "train_s"; nothing if its log does not have them."""
    seconds = RunHistory(lines).train_s
    return {} if seconds is None else {"train_s": seconds}


def time_in_words(run: Mapping[str, Any]) -> str:
    """What `time_of` found, for a table."""
    return format_seconds(run["train_s"]) if "train_s" in run else ""


def stop_card(started: float) -> str:
    """A card with the time since a stop began, by `time.perf_counter`."""
    return card("time of this stop", format_seconds(time.perf_counter() - started))


def links_to(runs: Iterable[str]) -> str:
    """Links to the reports of runs in folders of these names."""
    return " · ".join(f'<a href="{name}/report.html">{name}</a>' for name in runs)
