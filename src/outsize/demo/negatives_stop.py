"""Stop 4: training against a cache of stale items."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from rich.console import Console

from outsize.demo.shown import (
    introduce,
    links_to,
    print_table,
    stop_card,
    time_in_words,
    time_of,
)
from outsize.files import write_text_atomically
from outsize.negatives import ExactConfig, InBatchConfig, NegativesConfig
from outsize.reporting.colors import series_color
from outsize.reporting.line_plot import Plot, Series, draw
from outsize.reporting.page import card, html_table, page
from outsize.training import RunConfig, load_config, train
from outsize.training.run_folder import RunFolder

_QUICK = ("data.num_queries=200", "data.num_items=100", "train.steps=20",
          "train.validate_every=10", "train.log_every=10")  # fmt: skip
_COLUMNS = ("", "test recall@20", "test NDCG@10", "encoded per step", "staleness", "age",
            "time")  # fmt: skip


def negatives_stop(out: Path, quick: bool, console: Console) -> dict[str, Any]:
    """Two towers trained within batches, against a cache of all items, and against all items."""
    with as_file(files("outsize.demo") / "negatives.toml") as path:
        config = load_config(path, _QUICK if quick else ())
    introduce(
        console,
        "Stop 4: a cache of negatives",
        "A query should score its own item above all others. Within a batch there are 31 "
        "others, most of them easy, and popular ones too often (logQ corrects that). A cache "
        "keeps all 5,000 as they were when they were last encoded: eight are drawn for each "
        "query, the hard ones as often as they matter, and only those are re-encoded. "
        "Encoding all items in every step is exact, but no large encoder could afford it.",
    )
    started = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, negatives in _modes(config).items():
        if not console.quiet:
            console.print(f"[bold]{name}")
        run = train(replace(config, negatives=negatives), out / name, quiet=console.quiet)
        found[name] = summarize(RunFolder(out / name).metrics(), run.test)
    rows = _in_words(found)
    print_table(console, _COLUMNS, rows)
    write_text_atomically(out / "report.html", _page(found, rows, stop_card(started)))
    console.print(f"look at: {out / 'report.html'}")
    return {"out": str(out), "runs": found}


def summarize(
    lines: Sequence[Mapping[str, Any]], test: Mapping[str, float | None]
) -> dict[str, Any]:
    """Test metrics, recall by step, and the state of the negatives at the end of a run."""
    trained = [line for line in lines if line["split"] == "train"][-1]
    curve = [(line["step"], line["recall@20"]) for line in lines if line["split"] == "validation"]
    names = ("staleness", "staleness_p95", "age", "held", "refreshed", "duplicates", "p_positive")
    return {
        "test": dict(test),
        "curve": curve,
        "negatives": {name: trained[name] for name in names if name in trained},
        **time_of(lines),
    }


def _modes(config: RunConfig) -> dict[str, NegativesConfig]:
    assert config.negatives is not None
    beta = config.negatives.beta
    return {
        "in-batch": InBatchConfig(beta=beta),
        "in-batch-logq": InBatchConfig(beta=beta, log_q=True),
        "cache": config.negatives,
        "exact": ExactConfig(beta=beta),
    }


def _in_words(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each run, as `_COLUMNS` says."""
    rows: list[tuple[str, ...]] = []
    for name, run in found.items():
        facts = run["negatives"]
        rows.append(
            (
                name,
                f"{run['test']['recall@20']:.4f}",
                f"{run['test']['ndcg@10']:.4f}",
                f"{facts['refreshed']:.1%} of all" if "refreshed" in facts else "",
                f"{facts['staleness']:.4f}" if "staleness" in facts else "",
                f"{facts['age']:.0f} steps" if "age" in facts else "",
                time_in_words(run),
            )
        )
    return rows


def _page(
    found: Mapping[str, Mapping[str, Any]], rows: Sequence[Sequence[str]], time_card: str
) -> str:
    cards = "".join(card(f"{name}: recall@20", recall) for name, recall, *_ in rows)
    return page(
        "Negative cache",
        f'<div class="cards">{cards}{time_card}</div>\n'
        f"<section><h2>Recall while training</h2>{_curves_svg(found)}</section><br>\n"
        f"<section><h2>Results</h2>{html_table(_COLUMNS, rows)}\n"
        "<p>Staleness: ‖cached − fresh‖² / ‖fresh‖² of the items that were drawn. Age: steps since "
        "a cached item was encoded. Both at the end of the run. Time: of training, without "
        "validation.</p></section><br>\n"
        f"<section><h2>Every run</h2>{links_to(found)}</section>\n",
    )


def _curves_svg(found: Mapping[str, Mapping[str, Any]]) -> str:
    series = [
        Series(run["curve"], series_color(number), name, markers=True)
        for number, (name, run) in enumerate(found.items())
    ]
    return draw(Plot(series, "steps", "recall@20, validation"))
