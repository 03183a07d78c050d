"""Check that every launch of several ranks ends, whatever happens to one of them.

    python -m benchmarks.het.stress_launches --launches 200 --kill-share 0.5 --seed 0 --jobs 8 \\
        --out benchmarks/results

torchrun starts small runs of each kind (`KINDS`), several at a time. In a share of them one rank is
killed (SIGKILL) at a random moment: in half of those while the ranks start and join each other, in
the other half between then and the expected end of the run. A launch must end within `--bound`
seconds after the kill; a launch without a kill has ten times as long, because it does all its work.
The outcomes:

- *finished*: all ranks did their work; the kill, if any, came too late.
- *in one line*: at least one survivor said that it lost the others, and none printed a traceback.
- *by the launcher*: torchrun ended the survivors before they began to train or could say anything.
- *with a traceback*: a survivor ended, but not in one line.
- *hung*: it did not end within the bound, and was killed then.

The exit code is 1 if any launch hung, printed a traceback, or failed without a kill.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.het.launches import KINDS, OUTCOMES, Ended, Launches, draw_plans
from benchmarks.runner import typed_command
from outsize.bench.runner import results_page, write_results
from outsize.reporting.environment import environment

STEM = "stress-launches-cpu"  # the ranks train on the CPU on every machine


def summarize(ended: list[Ended]) -> list[dict[str, Any]]:
    """One row per kind, and one for all kinds."""
    rows: list[dict[str, Any]] = []
    for kind in (*KINDS, "all"):
        chosen = [one for one in ended if kind in (one.kind, "all")]
        after_kill = [one.ended_after_s for one in chosen if one.victim is not None]
        counts = Counter(one.outcome for one in chosen)
        rows.append(
            {
                "kind": kind,
                "launches": len(chosen),
                "killed": len(after_kill),
                **{outcome: counts[outcome] for outcome in OUTCOMES},
                "median_s": round(statistics.median(after_kill), 1) if after_kill else None,
                "longest_s": round(max(after_kill), 1) if after_kill else None,
            }
        )
    return rows


def table(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> str:
    """The results as Markdown."""
    titles = ["kind", "launches", "killed", *OUTCOMES, "median s", "longest s"]
    lines = [
        f"{arguments.ranks} ranks per launch, {arguments.jobs} launches at a time. A rank is "
        "killed (SIGKILL) at a random moment, in half of the cases before they begin to train; "
        f"a launch that has not ended {arguments.bound:.0f} s later has hung. Finished: the kill, "
        "if any, came too late. By the launcher: torchrun ended the survivors before they "
        "began to train. Seconds are from the kill to the end of the launch.\n",
        "| " + " | ".join(titles) + " |",
        "|---|" + "--:|" * (len(titles) - 1),
    ]
    for row in rows:
        cells = ["—" if value is None else str(value) for value in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def is_bad(one: Ended) -> bool:
    """Whether a launch ended in a way that none should."""
    alone_and_failed = one.victim is None and one.outcome != "finished"
    return alone_and_failed or one.outcome in ("hung", "with a traceback")


def main() -> int:
    """Launch; print the table and write it. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--kill-share", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=4, help="launches at a time")
    parser.add_argument("--ranks", type=int, default=3, help="ranks per launch")
    parser.add_argument("--bound", type=float, default=60.0, help="seconds to end within")
    parser.add_argument("--out", type=Path, help=f"folder for {STEM}.md and .json")
    parser.add_argument("--keep", type=Path, help="empty folder in which to keep runs and logs")
    arguments = parser.parse_args()
    plans = draw_plans(arguments.launches, arguments.kill_share, arguments.ranks, arguments.seed)
    with tempfile.TemporaryDirectory() as scratch:
        launches = Launches(arguments.keep or Path(scratch), arguments.ranks, arguments.bound)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            ended: list[Ended] = []
            for one in pool.map(launches.run, plans):
                ended.append(one)
                print(json.dumps(asdict(one)), file=sys.stderr, flush=True)
    rows = summarize(ended)
    results = {
        "command": typed_command("benchmarks.het.stress_launches"),
        "environment": environment(),
        "rows": rows,
        "launches": [asdict(one) for one in ended],
    }
    title = "Launches of several ranks, some of which lose one"
    page = results_page(title, results, table(rows, arguments))
    print(page)
    if arguments.out is not None:
        write_results(arguments.out / STEM, results, page)
    return int(any(map(is_bad, ended)))


if __name__ == "__main__":
    sys.exit(main())
