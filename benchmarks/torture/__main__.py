"""`python -m benchmarks.torture`: see the package."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import benchmarks.torture
from benchmarks.runner import typed_command
from benchmarks.torture.campaign import Campaign, as_dicts, in_turns
from benchmarks.torture.kinds import KINDS
from benchmarks.torture.trial import FAILED, OUTCOMES, Ended
from outsize.bench.runner import results_page, say_to_console, write_results
from outsize.reporting.environment import environment

STEM = "torture-cpu"  # every trial runs on the CPU


_PRELOADED = ("torch._dynamo", "torch.nn.parallel", "pyarrow.csv", "pyarrow.parquet",
              "outsize.cli", "outsize.compare", "outsize.training.run",
              "outsize.training.tasks.retrieval")  # fmt: skip


def _warm_up() -> None:
    """Import once what all forked processes need; no threads, which a fork would lose."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    for name in _PRELOADED:
        importlib.import_module(name)


def summarize(ended: Sequence[Ended]) -> list[dict[str, Any]]:
    """One row per kind, and one for all kinds."""
    rows: list[dict[str, Any]] = []
    for kind in (*KINDS, "all"):
        chosen = [one for one in ended if kind in (one.kind, "all")]
        counts = Counter(one.outcome for one in chosen)
        rows.append(
            {"kind": kind, "tried": len(chosen), **{name: counts[name] for name in OUTCOMES}}
        )
    return rows


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    titles = ["kind", "tried", *OUTCOMES]
    lines = [
        f"Seed {results['seed']}. Survived: what the library promises holds, and the results equal "
        "those of an undisturbed run. Refused: the command ended with one line that names the "
        "thing, and nothing was lost. Skipped: this machine cannot run it. Failed: something was "
        "lost, hung for more than a minute, or printed a traceback.\n",
        "| " + " | ".join(titles) + " |",
        "|---|" + "--:|" * (len(titles) - 1),
        *("| " + " | ".join(str(row[title]) for title in titles) + " |" for row in results["rows"]),
    ]
    for outcome in (FAILED, "skipped"):
        for one in results["trials"]:
            if one["outcome"] == outcome:
                words = " ".join(one["words"].split())[-300:]
                lines.append(f"\n{outcome}: {one['kind']} {one['number']} ({one['what']}): {words}")
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    """Run the campaign; print the table and write it. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.torture", description=benchmarks.torture.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=9.0, help="no trial starts after these")
    parser.add_argument("--trials", type=int, default=1000, help="at most so many of each kind")
    parser.add_argument("--only", choices=KINDS, action="append", help="this kind; repeatable")
    parser.add_argument("--trial", type=int, help="the trial with this number alone")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--out", type=Path, help=f"folder for {STEM}.md and .json")
    parser.add_argument("--keep", type=Path, help="empty folder in which to keep what failed")
    given = parser.parse_args(words)
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
        if any(given.keep.iterdir()):
            parser.error(f"--keep {given.keep} is not empty: name another folder")
    _warm_up()
    kinds = given.only or list(KINDS)
    numbers = in_turns(kinds, given.trials)
    if given.trial is not None:
        numbers = [(kind, given.trial) for kind in kinds]
    say = say_to_console()
    say(f"seed {given.seed}, {', '.join(kinds)}")
    with tempfile.TemporaryDirectory(prefix="torture-") as scratch:
        campaign = Campaign(given.keep or Path(scratch), given.seed, given.jobs, say)
        campaign.run(numbers, 60 * given.minutes)
    results = {
        "benchmark": "torture",
        "command": typed_command("benchmarks.torture"),
        "environment": environment(),
        "seed": given.seed,
        "rows": summarize(campaign.ended),
        "trials": as_dicts(campaign.ended),
    }
    title = "torture: kills, damaged files, full disks, odd files and random histories"
    page = results_page(title, results, table(results))
    say(page)
    if given.out is not None:
        write_results(given.out / STEM, results, page)
    return int(any(one.outcome == FAILED for one in campaign.ended))


if __name__ == "__main__":
    sys.exit(main())
