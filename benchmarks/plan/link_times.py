"""The time of a step that `outsize plan --link` predicts, beside that of runs over such a link.

    sudo python -m benchmarks.plan.link_times [--turns 3] [--steps 60] [--out benchmarks/results]

The hosts are those of `benchmarks.het.one_gigabit`: two network namespaces with a limited link, one
rank each. Calibration, plans and runs take turns, each in processes of its own. Bytes are compared
by `predictions`; here they decide the time, as rows are wide and the link is slow.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.het.one_gigabit import train, two_hosts
from benchmarks.het.staleness_runs import steady_step_s
from outsize.bench import Benchmark, measure
from outsize.bench.runner import Say
from outsize.training.run_folder import RunFolder

LIMIT = 0.20
_BATCH, _DIM = 512, 128
_LINKS = ("1Gbit", "200Mbit")
_MODES = ("synchronous", "synchronous, int8", "s = 10, int8")
_PARTS = ("dense", "rows", "exchange")


def run(quick: bool, say: Say, turns: int = 3, steps: int = 60) -> dict[str, Any]:
    """Calibrate, plan and train in turns."""
    turns, steps = (1, 20) if quick else (turns, steps)
    given = argparse.Namespace(ranks=1, batch=_BATCH, dim=_DIM, steps=steps)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for turn in range(turns):
            calibration = work / f"calibration-{turn}.json"
            quickly = ["--quick"] * quick
            _outsize("bench", "calibrate", "--out", str(calibration), *quickly)
            for link in _LINKS:
                with two_hosts(link.lower()):
                    for number, mode in enumerate(_MODES):
                        out = work / f"{turn}-{link}-{number}"
                        train(mode, out, given)
                        taken = steady_step_s(RunFolder(out).metrics(), 2 * _BATCH)
                        shutil.rmtree(out)  # checkpoints of wide rows are large
                        planned = _plan(work / f"{out.name}.toml", link, calibration)
                        line = {"link": link, "mode": mode, "step_s": taken, "planned": planned}
                        say(json.dumps(line))
                        found.append(line)
    return {"turns": turns, "steps": steps, "lines": found}


def table(results: Mapping[str, Any]) -> str:
    """Results as Markdown."""
    lines = [
        f"Two hosts of one rank each with a link between them; batch {_BATCH} per rank, 26 "
        f"features of 38,462 rows of {_DIM} numbers (Zipf 1.05), cache of 10% of the rows, "
        f"{results['steps']} steps; medians of {results['turns']} turns, milliseconds. Planned is "
        "the mean step of the run, whose caches are empty at first and flushed at the end; "
        "measured is its second half. Bold is what is more than 20% off.",
        "",
        "| link | mode | dense | rows | exchange | planned step | measured step | off |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for link, mode in dict.fromkeys((line["link"], line["mode"]) for line in results["lines"]):
        found = [line for line in results["lines"] if (line["link"], line["mode"]) == (link, mode)]
        parts = {
            name: statistics.median(line["planned"][f"{name}_s"] for line in found)
            for name in (*_PARTS, "step")
        }
        taken = statistics.median(line["step_s"] for line in found)
        off = parts["step"] / taken - 1
        words = f"{off:+.0%}" if abs(off) <= LIMIT else f"**{off:+.0%}**"
        cells = [f"{1000 * seconds:.1f}" for seconds in (*parts.values(), taken)]
        lines.append(f"| {link} | {mode} | {' | '.join(cells)} | {words} |")
    return "\n".join([*lines, ""])


def _plan(run_file: Path, link: str, calibration: Path) -> dict[str, float]:
    """What `outsize plan` says of a step, by part."""
    words = ["plan", str(run_file), "--ranks", "2", "--link", link, "--json"]
    printed = _outsize(*words, "--calibration", str(calibration))
    times: dict[str, float] = json.loads(printed)["time"]
    return {f"{name}_s": times[f"{name}_s"] for name in (*_PARTS, "step")}


def _outsize(*words: str) -> str:
    """Run a command in a process of one thread; returns what it prints."""
    return subprocess.run(
        [sys.executable, "-m", "outsize", *words], env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip


def main() -> None:
    """Run the benchmark as a command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan.link_times")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--quick", action="store_true", help="one turn of few steps")
    parser.add_argument("--out", type=Path, help="also write the results to this folder")
    given = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("network namespaces need root: run with sudo")
    benchmark = Benchmark(
        "plan-link-times",
        f"python -m benchmarks.plan.link_times --turns {given.turns} --steps {given.steps}",
        "the time of a step that `outsize plan --link` predicts, beside runs over such a link",
        partial(run, turns=given.turns, steps=given.steps),
        table,
    )
    measure(benchmark, given.out, quick=given.quick)


if __name__ == "__main__":
    main()
