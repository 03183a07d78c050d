"""What every stop shows: what it is about, a table of results, links to its runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.panel import Panel
from rich.table import Table


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


def links_to(runs: Iterable[str]) -> str:
    """Links to the reports of runs in folders of these names."""
    return " · ".join(f'<a href="{name}/report.html">{name}</a>' for name in runs)
