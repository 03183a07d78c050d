"""Arguments and options that several commands share, and how commands speak to people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFile = Annotated[Path, typer.Argument(help="The run, a TOML file.", metavar="RUN.toml")]
Settings = Annotated[
    list[str], typer.Option("--set", help="Override a setting: section.key=value. Repeatable.")
]
Imports = Annotated[
    list[str],
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import a module that registers models, tables or data of yours. Repeatable.",
    ),
]
Step = Annotated[
    int | None,
    typer.Option(help="Take the checkpoint of this step. Default: of the best validation."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def say(text: str) -> None:
    """Print a line for people, on standard error."""
    from rich.console import Console

    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)
