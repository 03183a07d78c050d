"""Stop 3: rows sharded over two processes, with a cache in each."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
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
from outsize.errors import LostRanksError
from outsize.files import write_text_atomically
from outsize.launched import reason_of_failure
from outsize.reporting.bars import bars
from outsize.reporting.colors import SENT
from outsize.reporting.page import card, html_table, page
from outsize.reporting.progress import ProgressBar
from outsize.reporting.quantities import format_bytes
from outsize.training import load_config
from outsize.training.metric_names import metrics_of, number_of
from outsize.training.row_counts import sent_bytes
from outsize.training.run_folder import RunFolder

_NUM_RANKS = 2
_MODES: dict[str, tuple[str, ...]] = {
    "synchronous": ("embeddings.cache.share=0",),
    "cache": (),
    "cache-int8": ("embeddings.wire=int8",),
}
_QUICK = ("data.num_train=2_560", "data.num_validation=500", "data.num_test=500",
          "data.largest_vocabulary=500", "train.batch_size=64", "train.steps=10",
          "train.log_every=5")  # fmt: skip
_COLUMNS = ("", "bytes sent", "fewer", "hit rate", "largest lag", "test AUC", "time")
_POLL_S = 0.1


def cache_stop(out: Path, quick: bool, console: Console) -> dict[str, Any]:
    """A click model trained by two processes that share its rows: without a cache and with one."""
    introduce(
        console,
        "Stop 3: sharded rows with bounded-staleness caches",
        "Two processes train one click model, and each owns half of the embedding rows. "
        "Without a cache, every row of a batch that the other process owns is sent over, and "
        "its gradient back. With a cache, each keeps copies of a tenth of the rows, those it "
        "uses most: a copy may miss 100 updates of the other process, and 10 batches of its "
        "own updates may wait before they are sent. Last, messages are rounded to int8.",
    )
    started = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    settings = _QUICK if quick else ()
    with as_file(files("outsize.demo") / "cache.toml") as path:
        total = load_config(path, settings).train.steps or 0
        for mode, own in _MODES.items():
            with ProgressBar(mode, total, 0, console) as bar:
                for step in train_on_ranks(path, (*settings, *own), out / mode):
                    bar.advance(step)
                bar.advance(total)
            if not console.is_terminal:
                console.print(f"trained: {mode}")
    found = {mode: summarize(RunFolder(out / mode).metrics()) for mode in _MODES}
    rows = _in_words(found)
    print_table(console, _COLUMNS, rows)
    write_text_atomically(out / "report.html", _page(found, rows, stop_card(started)))
    console.print(f"look at: {out / 'report.html'}")
    return {"out": str(out), "runs": found}


def train_on_ranks(run: Path, settings: Sequence[str], out: Path) -> Iterator[int]:
    """Train a run file in processes of their own; yields the last logged step as it runs.

    Args:
        run: The run file.
        settings: Overrides, `section.key=value`.
        out: Folder of the run.
    """
    words = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={_NUM_RANKS}", "-m", "outsize", "train", str(run), "--out", str(out),
        "--json", *(word for setting in settings for word in ("--set", setting)),
    ]  # fmt: skip
    log = out.with_name(f"{out.name}.log")
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        log.open("w") as file,
        _ending(
            subprocess.Popen(words, env=one_thread, stdout=subprocess.DEVNULL, stderr=file)
        ) as launcher,
    ):
        while launcher.poll() is None:
            time.sleep(_POLL_S)
            yield max((line["step"] for line in RunFolder(out).metrics()), default=0)
    if launcher.returncode:
        raise LostRanksError(
            f"the run in {out} failed: {reason_of_failure(log.read_text(errors='replace'))}; "
            f"the output of its processes is in {log}"
        )
    log.unlink()


def summarize(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Bytes sent, cache hit rate, largest lag and test metrics of a run."""
    trained = [line for line in lines if line["split"] == "train"]
    lags = [line["largest_lag"] for line in trained if line["largest_lag"] is not None]
    test = [line for line in lines if line["split"] == "test"][-1]
    return {
        "sent_bytes": sent_bytes(lines),
        "hit_rate": trained[-1]["hit_rate"],
        "largest_lag": max(lags, default=None),
        "test": metrics_of(test),
        **time_of(lines),
    }


def _in_words(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each run, as `_COLUMNS` says."""
    totals = {mode: sum(run["sent_bytes"].values()) for mode, run in found.items()}
    rows: list[tuple[str, ...]] = []
    for mode, run in found.items():
        is_cached = mode != "synchronous"
        rows.append(
            (
                mode,
                format_bytes(totals[mode]),
                f"{1 - totals[mode] / totals['synchronous']:.0%}" if is_cached else "",
                f"{run['hit_rate']:.3f}" if is_cached else "",
                f"{run['largest_lag']} of 100" if is_cached else "",
                number_of(run["test"]["auc"], ".4f"),
                time_in_words(run),
            )
        )
    best = found["synchronous"]["test"]["bayes_auc"]
    rows.append(("best reachable (Bayes)", "", "", "", "", number_of(best, ".4f"), ""))
    return rows


def _page(
    found: Mapping[str, Mapping[str, Any]], rows: Sequence[Sequence[str]], time_card: str
) -> str:
    cards = "".join(
        card(f"{mode}: {fewer} fewer bytes" if fewer else f"{mode}: bytes sent", sent)
        for mode, sent, fewer, *_ in rows
        if sent
    )
    drawn = bars({name: run["sent_bytes"] for name, run in found.items()}, SENT)
    return page(
        "Sharded rows with bounded-staleness caches",
        f'<div class="cards">{cards}{time_card}</div>\n'
        f"<section><h2>What two processes sent each other</h2>{drawn}</section><br>\n"
        f"<section><h2>What it cost</h2>{html_table(_COLUMNS, rows)}\n"
        "<p>Hit rate: rows of the other process that were read from a copy, at the end of the run. "
        "Largest lag: how many updates of the other process a copy had missed when it was read, "
        "and the bound. Time: of training; both processes share the cores of one "
        "machine.</p></section><br>\n"
        f"<section><h2>Every run</h2>{links_to(found)}</section>\n",
    )


@contextlib.contextmanager
def _ending(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive the context."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
