"""The time of a step that `outsize plan` predicts, beside that of runs with a core per rank.

    python -m benchmarks.plan.times --ranks 2 --repeats 5 --out benchmarks/results

Calibration, plans and runs take turns, each in processes of its own, so a machine that is busy for
a while disturbs all of them; medians over the turns are compared. Run it on a machine with nothing
else to do, and with as many cores as ranks: `--ranks 2,4,8` on eight. Processor time, which other
processes hardly change, is compared as well: that of the parts that compute, dense and rows, beside
that of a whole step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.plan.planned_cells import RUNS, STORES, TRAIN
from outsize.bench import Benchmark, measure
from outsize.bench.runner import Say
from outsize.training.strict_toml import override, to_toml
from outsize.training.toml_text import parse_toml

LIMIT = 0.20
CELLS = ("local", "sharded, bfloat16", "cache, s = 10", "cache, read 100, write 10, int8")
_STEPS = 60


def run(quick: bool, say: Say, sizes: list[int], repeats: int, work: Path) -> dict[str, Any]:
    """Calibrate, plan and train in turns; with `quick`, one cell once."""
    cells = CELLS[2:3] if quick else CELLS
    found: list[dict[str, Any]] = []
    loads = []
    for turn in range(1 if quick else repeats):
        for num_ranks in sizes:
            file = work / f"calibration-{turn}-{num_ranks}.json"
            _python("-m", "outsize", "bench", "calibrate", "--out", file, *["--quick"] * quick)
            for cell in cells:
                loads.append(os.getloadavg()[0])
                line = {"turn": turn, "ranks": num_ranks, "store": cell}
                line |= _cell(cell, num_ranks, file, work, 20 if quick else _STEPS)
                say(json.dumps(line))
                found.append(line)
    return {"load": statistics.median(loads), "cores": os.cpu_count(), "lines": found}


def _cell(cell: str, num_ranks: int, calibration: Path, work: Path, steps: int) -> dict[str, Any]:
    """Plan a run, then train it."""
    tree = parse_toml(RUNS["synthetic"] + TRAIN)
    settings = [f"train.steps={steps}", "train.device=cpu", *STORES[cell]]
    path = work / "run.toml"
    path.write_text(to_toml(override(tree, settings)))
    plan = json.loads(
        _python("-m", "outsize", "plan", path, "--ranks", num_ranks, "--calibration", calibration,
                "--json")
    )  # fmt: skip
    _python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", num_ranks,
            "-m", "benchmarks.plan.timed_rank", path, work)  # fmt: skip
    measured = json.loads((work / "rank-0.json").read_text())
    times = plan["time"]
    return {
        "predicted_s": times["step_s"],
        "parts": {part: times[f"{part}_s"] for part in ("dense", "rows", "exchange")},
        "measured_s": statistics.median(measured["step_s"]),
        "predicted_processor_s": times["dense_s"] + times["rows_s"],
        "measured_processor_s": statistics.median(measured["processor_s"]),
    }


def _python(*words: object) -> str:
    """Run Python with one thread in a process of its own; returns what it prints."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        # the first lines say why, the last ones are those of the launcher
        raise RuntimeError(f"{words} failed: {done.stderr[:3000]} … {done.stderr[-1000:]}")
    return done.stdout


def table(results: dict[str, Any]) -> str:
    """Results as Markdown."""
    lines = [
        f"Synthetic log, batches of 512 per rank, a core per rank, {results['cores']} cores, load "
        f"average {results['load']:.1f}. Milliseconds of a step, median over turns, predicted / "
        "measured. Bold is what is more than 20% off.",
        "",
        "| ranks | embeddings | turns | dense | rows | exchange | step | processor time |",
        "|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    keys = dict.fromkeys((line["ranks"], line["store"]) for line in results["lines"])
    for num_ranks, store in keys:
        found = [
            each
            for each in results["lines"]
            if (each["ranks"], each["store"]) == (num_ranks, store)
        ]
        parts = [
            f"{1000 * statistics.median(each['parts'][part] for each in found):.1f}"
            for part in ("dense", "rows", "exchange")
        ]
        pairs = [
            _pair(*(statistics.median(each[f"{side}_{kind}"] for each in found)
                    for side in ("predicted", "measured")))
            for kind in ("s", "processor_s")
        ]  # fmt: skip
        words = [str(num_ranks), store, str(len(found)), *parts, *pairs]
        lines.append(f"| {' | '.join(words)} |")
    if results["load"] > 1.5 * results["cores"]:
        lines += ["", "The machine was busy with other work: steps waited for a core, and only "
                  "processor time tells."]  # fmt: skip
    return "\n".join([*lines, ""])


def _pair(predicted: float, measured: float) -> str:
    off = predicted / measured - 1
    text = f"{1000 * predicted:.1f} / {1000 * measured:.1f} ({off:+.0%})"
    return text if abs(off) <= LIMIT else f"**{text}**"


def main() -> None:
    """Run the benchmark as a command."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.plan.times")
    parser.add_argument("--ranks", default="2", help="numbers of ranks, by commas")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each cell")
    parser.add_argument("--quick", action="store_true", help="one cell, few steps")
    parser.add_argument("--out", type=Path, help="also write the results to this folder")
    given = parser.parse_args()
    sizes = [int(word) for word in given.ranks.split(",")]
    if max(sizes) > (os.cpu_count() or 1):
        raise SystemExit(f"--ranks {given.ranks}: this machine has {os.cpu_count()} cores, and "
                         "each rank needs one")  # fmt: skip
    command = f"python -m benchmarks.plan.times --ranks {given.ranks} --repeats {given.repeats}"
    with tempfile.TemporaryDirectory() as work:
        benchmark = Benchmark(
            name="plan-times",
            command=command,
            about="the time of a step that `outsize plan` predicts beside that of runs",
            run=partial(run, sizes=sizes, repeats=given.repeats, work=Path(work)),
            table=table,
        )
        measure(benchmark, given.out, quick=given.quick)


if __name__ == "__main__":
    main()
