"""`outsize search`: the items of a text model that answer a query."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outsize.cli.command_options import AsJson, Imports, Step, say
from outsize.errors import ConfigError, DataError
from outsize.user_modules import import_modules

if TYPE_CHECKING:
    from outsize.export.text_search import Answer, TextSearch

_LINES_SHOWN = 6


def search(
    model: Annotated[
        Path, typer.Argument(help="The folder of a run or of an export.", metavar="RUN|DIR")
    ],
    queries: Annotated[
        list[str],
        typer.Argument(help="What to look for; - reads one query per line.", metavar="QUERY"),
    ],
    k: Annotated[int, typer.Option("-k", help="Answers per query.")] = 5,
    index: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Search an item index in this folder; made if missing."),
    ] = None,
    refresh: Annotated[
        int,
        typer.Option(help="Items of the index to encode again first, the most asked ones."),
    ] = 0,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Encode stale candidates of the index again."),
    ] = False,
    step: Step = None,
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Search the items of a text model, and show the best ones."""
    from outsize.training.search_run import open_search

    import_modules(imports)
    if index is None and (refresh or repair):
        raise ConfigError("--refresh and --repair are of an item index: name it with --index")
    if k < 1 or refresh < 0:
        raise ConfigError(f"-k must be >= 1 and --refresh >= 0, but got {k} and {refresh}")
    asked = _queries(queries)
    found, note = open_search(model, step)
    if note:
        say(f"note: {note}")
    summary: dict[str, Any] = {"model": str(model), "version": found.version}
    if index is None:
        answers = found.answers(asked, k)
    else:
        answers, summary["index"] = _search_index(found, asked, k, index, refresh, repair)
        if not as_json:
            say(f"{index}: {_index_in_words(summary['index'])}")
    if not as_json:
        _show(asked, answers)
    lists = [[answer.as_json() for answer in line] for line in answers]
    summary["queries"] = [
        {"query": query, "answers": line} for query, line in zip(asked, lists, strict=True)
    ]
    return summary


def _queries(words: Sequence[str]) -> list[str]:
    """The queries of the command line; `-` is replaced by the lines of standard input."""
    found: list[str] = []
    for word in words:
        if word == "-":
            found += [line.strip() for line in sys.stdin if line.strip()]
        else:
            found.append(word)
    if not found:
        raise DataError("standard input has no query: write one per line")
    return found


def _search_index(
    found: TextSearch, asked: Sequence[str], k: int, path: Path, refresh: int, repair: bool
) -> tuple[list[list[Answer]], dict[str, Any]]:
    """The answers from an index, and what was done to it."""
    with found.open_index(path) as index:
        report = index.refresh(found.encode, found.version, refresh)
        answers = found.answers(asked, k, index, repair=repair)
        versions = index.versions()
    facts = {"folder": str(path), "num_encoded": report.num_encoded, "num_items": len(index),
             "num_stale": len(index) - versions.get(found.version, 0)}  # fmt: skip
    return answers, facts


def _index_in_words(facts: dict[str, Any]) -> str:
    encoded = f", {facts['num_encoded']:,} encoded again" if facts["num_encoded"] else ""
    return f"{facts['num_items']:,} items, {facts['num_stale']:,} of older versions{encoded}"


def _show(queries: Sequence[str], answers: Sequence[Sequence[Answer]]) -> None:
    """Print answers for people, on standard output."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, soft_wrap=True)
    for number, (query, line) in enumerate(zip(queries, answers, strict=True)):
        if len(queries) > 1:
            console.print(Text(f"{'' if number == 0 else chr(10)}{printable(query)}", "bold"))
        for answer in line:
            place = _place_of(answer.facts)
            head = Text(f"{answer.rank:>3}. ")
            head.append(printable(answer.id), "bold")
            head.append(f"  {answer.score:.3f}", "cyan")
            console.print(head)
            if place:
                console.print(Text(f"     {place}", "dim"))
            for shown in excerpt(answer.text):
                width = max(20, console.width - 7)
                console.print(Text(f"       {shown[:width]}"))


def excerpt(text: str) -> list[str]:
    """The first lines of a text that are not empty, with an ellipsis where there are more."""
    lines = [printable(line.rstrip().expandtabs(4)) for line in text.splitlines() if line.strip()]
    more = ["…"] if len(lines) > _LINES_SHOWN else []
    return [*lines[:_LINES_SHOWN], *more]


def printable(text: str) -> str:
    """Text without control characters, which could change what a terminal shows."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def _place_of(facts: dict[str, str | int]) -> str:
    if "file" not in facts:
        return ""
    line = f":{facts['line']}" if "line" in facts else ""
    return printable(f"{facts['file']}{line}")
