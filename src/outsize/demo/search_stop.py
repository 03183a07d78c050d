"""Stop 5: searching functions by what they do."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from rich.console import Console

from outsize.demo.shown import introduce, links_to, print_table, stop_card
from outsize.export.text_search import Answer, TextSearch
from outsize.files import write_text_atomically
from outsize.reporting.page import card, page
from outsize.training import export_run, load_config, train

QUERIES = ("merge sorted lists", "parse a date", "remove a directory with all its files")
_QUICK = ('data.packages=["heapq","bisect","shutil","textwrap","statistics"]', "train.epochs=1",
          "train.batch_size=32", "data.validation=0.2", "data.test=0.2")  # fmt: skip
_COLUMNS = ("", "first answer", "second", "third")
_NUM_ANSWERS = 3


def search_stop(out: Path, quick: bool, console: Console) -> dict[str, Any]:
    """A text model trained from scratch on docstrings, exported, and asked."""
    with as_file(files("outsize.demo") / "search.toml") as path:
        config = load_config(path, _QUICK if quick else ())
    introduce(
        console,
        "Stop 5: search functions by what they do",
        "A small text model learns from scratch to find a function by its docstring. It reads the "
        "standard library of the Python that runs this, so there is nothing to download; files "
        "are parsed, never run. Then it is asked in other words than it was trained on.",
    )
    started = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    run = train(config, out / "run", quiet=console.quiet)
    export_run(out / "run", out / "exported")
    search = TextSearch(out / "exported")
    found = dict(zip(QUERIES, search.answers(QUERIES, _NUM_ANSWERS), strict=True))
    rows = [(query, *(answer.id for answer in answers)) for query, answers in found.items()]
    print_table(console, _COLUMNS, rows)
    test = {name: value for name, value in run.test.items() if "@" in name}
    num_items = len(search.items.names)
    write_text_atomically(out / "report.html", _page(found, test, num_items, stop_card(started)))
    console.print(f"look at: {out / 'report.html'}")
    console.print(f'ask more: outsize search {out / "exported"} "…", or outsize serve it')
    return {
        "out": str(out),
        "num_items": num_items,
        "test": test,
        "answers": {query: [one.as_json() for one in line] for query, line in found.items()},
    }


def _page(
    found: Mapping[str, Sequence[Answer]],
    test: Mapping[str, float | None],
    num_items: int,
    time_card: str,
) -> str:
    recall = test["recall@10"]
    cards = card("functions", f"{num_items:,}")
    cards += card("test recall@10", "none" if recall is None else f"{recall:.3f}")
    sections = "".join(
        f"<section><h2>{html.escape(query)}</h2>{''.join(map(_answer, answers))}</section><br>\n"
        for query, answers in found.items()
    )
    return page(
        "Search functions by what they do",
        f'<div class="cards">{cards}{time_card}</div>\n{sections}'
        f"<section><h2>The run</h2>{links_to(['run'])}</section>\n",
    )


def _answer(answer: Answer) -> str:
    lines = [line for line in answer.text.splitlines() if line.strip()]
    place = f"{answer.facts['file']}:{answer.facts['line']}"
    return (
        f"<p><b>{html.escape(answer.id)}</b> {answer.score:.3f}<br>"
        f"<small>{html.escape(place)}</small></p>"
        f"<pre>{html.escape(chr(10).join(lines[:8]))}</pre>\n"
    )
