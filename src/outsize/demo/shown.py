"""Results of a stop: a table in the terminal, and the same table in HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table


def print_table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """What came out, a row for each run; the first column has the names."""
    table = Table(title="What came out", title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The same for a page."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def links_to(runs: Iterable[str]) -> str:
    """Links to the reports of runs in folders of these names."""
    return " · ".join(f'<a href="{name}/report.html">{name}</a>' for name in runs)
