"""`outsize init`: a run file from a file of data."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from outsize.cli.command_options import AsJson, say

_Columns = Annotated[
    list[str], typer.Option(metavar="COLUMN", help="Leave a column out. Repeatable.")
]


def init(
    data: Annotated[
        str,
        typer.Argument(help="A CSV, TSV or Parquet file, a pattern, or a folder.", metavar="DATA"),
    ],
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column of the label.")
    ] = None,
    positive: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE", help="The value that counts as 1; of numbers, the smallest one."
        ),
    ] = None,
    drop: _Columns = [],  # noqa: B006  typer copies it
    keep: Annotated[
        list[str],
        typer.Option(
            metavar="COLUMN", help="Use a column that would be left out as a leak. Repeatable."
        ),
    ] = [],  # noqa: B006
    time: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Hold out the latest rows by this column.")
    ] = None,
    task: Annotated[
        str, typer.Option(help="click, retrieval, or auto, which goes by the names of columns.")
    ] = "auto",
    query: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Retrieval: the column of queries.")
    ] = None,
    item: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Retrieval: the column of items.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="RUN.toml", help="The file to write.")] = Path(
        "run.toml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Write a run file for a CSV or Parquet file: columns, label, split, model and training."""
    from outsize.suggest import Wishes, suggest_run, write_run_file
    from outsize.suggest.run_file import decision_table
    from outsize.suggest.suggest import require_writable

    require_writable(out, force)
    wishes = Wishes(label, positive, tuple(drop), tuple(keep), time)
    suggestion = suggest_run(data, wishes, task=task, query=query, item=item)
    words = [data]
    for name, value in (("label", label), ("positive", positive), ("time", time),
                        ("query", query), ("item", item)):  # fmt: skip
        words += [] if value is None else [f"--{name}", value]
    for name, values in (("drop", drop), ("keep", keep)):
        words += [word for value in values for word in (f"--{name}", value)]
    write_run_file(suggestion, out, f"outsize init {shlex.join(words)}", force)
    if not as_json:
        for line in decision_table(suggestion):
            say(line)
        for note in suggestion.notes:
            say(f"note: {note}")
        for section, comment in suggestion.comments.items():
            if section in suggestion.sections:
                say(f"[{section}]  {comment}")
        say(f"→  {out}; train it with: outsize train {shlex.quote(str(out))}")
    return {
        "out": str(out),
        "num_rows": suggestion.total_rows,
        "is_estimate": suggestion.is_estimate,
        "columns": [asdict(decision) for decision in suggestion.decisions],
        "notes": suggestion.notes,
        "run": suggestion.sections,
    }
