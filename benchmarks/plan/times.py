"""The time of a step that `outsize plan` predicts, beside that of runs with a core for each rank.

    python -m benchmarks.plan.times --ranks 2,4,8 --repeats 5 --data DATA --out benchmarks/results

Calibration, plans and runs take turns, each in processes of its own, so a machine that is busy for
a while disturbs all of them; medians over the turns are compared. Run it on a machine with nothing
else to do, and with as many cores as ranks: `--ranks 2,4,8` on eight. Ranks are not bound to cores,
as torchrun does not bind them: gloo's threads would compete with a rank for its core. Processor
time, which other processes hardly change, is compared as well: that of the parts that compute,
dense and rows, beside that of a whole step. What all ranks sent is compared with what was planned.

`--seconds` ends what runs after so many seconds. Then, and if it is interrupted or terminated, the
page of what was measured until then is written.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.plan.planned_cells import RUNS, STORES, TIMED, TRAIN
from benchmarks.plan.step_parts import PARTS
from outsize.bench import Benchmark, measure
from outsize.bench.runner import Say
from outsize.reporting.quantities import format_bytes
from outsize.training.strict_toml import override, to_toml
from outsize.training.toml_text import parse_toml

LIMITS = {"time": 0.20, "sent": 0.10}
_STEPS, _GRACE_S = 60, 5.0
_KEYS = ("ranks", "data", "store")


def run(
    quick: bool,
    say: Say,
    *,
    sizes: Sequence[int],
    repeats: int,
    data: Path | None,
    work: Path,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Calibrate, plan and train in turns; with `quick`, one cell once.

    Args:
        quick: Take few steps.
        say: Shows progress.
        sizes: Numbers of ranks.
        repeats: Turns at most.
        data: Folder of the data sets; without it, the synthetic log alone.
        work: Folder for files; `lines.jsonl` in it has what is done so far.
        seconds: End what runs after so many seconds; by default, all turns are taken.
    """
    timed = {"synthetic": TIMED["synthetic"][2:3]} if quick else dict(TIMED)
    if data is None:
        timed = {name: stores for name, stores in timed.items() if name == "synthetic"}
    end = None if seconds is None else time.monotonic() + seconds
    loads = [os.getloadavg()[0]]
    lines: list[dict[str, Any]] = []
    try:
        for turn in range(1 if quick else repeats):
            calibration = work / f"calibration-{turn}.json"
            _python("-m", "outsize", "bench", "calibrate", "--out", calibration,
                    *["--quick"] * quick, end=end)  # fmt: skip
            for name, size in itertools.product(timed, sizes):
                loads.append(os.getloadavg()[0])
                folder, steps = work / f"{turn}-{name}-{size}", 20 if quick else _STEPS
                found = _group(name, timed[name], size, data, calibration, folder, steps, end)
                for line in ({"turn": turn, **each} for each in found):
                    say(json.dumps(line))
                    lines.append(line)
                    with (work / "lines.jsonl").open("a") as file:
                        file.write(json.dumps(line) + "\n")
    except (KeyboardInterrupt, subprocess.TimeoutExpired) as stop:
        if not lines:
            raise
        say(f"{type(stop).__name__} after {len(lines)} lines: what follows is left out")
    return {"load": statistics.median(loads), "cores": len(os.sched_getaffinity(0)),
            "lines": lines}  # fmt: skip


def _group(
    name: str,
    stores: Sequence[str],
    num_ranks: int,
    data: Path | None,
    calibration: Path,
    folder: Path,
    steps: int,
    end: float | None,
) -> list[dict[str, Any]]:
    """Plan the runs on one data set, then train them."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for number, store in enumerate(stores):
        tree = parse_toml(RUNS[name].format(data=data) + TRAIN)
        settings = [f"train.steps={steps}", "train.epochs=100", "train.device=cpu", *STORES[store]]
        runs.append(folder / f"run-{number}.toml")
        runs[-1].write_text(to_toml(override(tree, settings)))
    _python("-m", "benchmarks.plan.timed_plan", folder, num_ranks, calibration, *runs, end=end)
    _python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", num_ranks,
            "-m", "benchmarks.plan.timed_rank", folder, *runs, end=end)  # fmt: skip
    plans = json.loads((folder / "plans.json").read_text())
    ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(num_ranks)]
    return [
        {"ranks": num_ranks, "data": name, "store": store}
        | line_of(plans[run.stem], [rank[run.stem] for rank in ranks])
        for store, run in zip(stores, runs, strict=True)
    ]


def line_of(plan: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What was planned beside what was measured.

    Args:
        plan: The summary of a plan.
        ranks: What each rank has written of its steps.
    """
    times, traffic = plan["time"], plan["traffic"]
    steps = [step for rank in ranks for step in rank["steps"]]
    processor = [f"{part}_processor" for part in PARTS]
    return {
        "planned": {
            "step": times["step_s"],
            **{part: times[f"{part}_s"] for part in PARTS},
            "processor": times["dense_s"] + times["rows_s"],
        },
        "measured": {
            "step": statistics.median(sum(step[part] for part in PARTS) for step in steps),
            **{key: statistics.median(step[key] for step in steps) for key in (*PARTS, *processor)},
            "processor": statistics.median(sum(step[key] for key in processor) for step in steps),
        },
        "planned_sent": None if traffic is None else sum(traffic["sent_bytes"].values()),
        "measured_sent": ranks[0]["sent"] if traffic is not None else None,
    }


def _python(*words: object, end: float | None = None) -> None:
    """Run Python with one thread in a process of its own, which ends at a time at the latest.

    What it has started ends with it.
    """
    with subprocess.Popen(
        [sys.executable, *map(str, words)], env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            left = None if end is None else max(0.0, end - time.monotonic())
            _, errors = process.communicate(timeout=left)
        except BaseException:
            _end(process)
            raise
    if process.returncode:
        # the first lines say why, the last ones are those of the launcher
        raise RuntimeError(f"{words} failed: {errors[:3000]} … {errors[-1000:]}")


def _end(process: subprocess.Popen[str]) -> None:
    """End a process with its group; a launcher that is asked to ends its ranks first."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def table(results: dict[str, Any]) -> str:
    """Results as Markdown."""
    lines = [
        f"Batches of 512 per rank, {results['cores']} cores, load average "
        f"{results['load']:.1f}. Milliseconds of a step, median over turns, predicted / measured. "
        "Bold is what is more than 20% off, of bytes 10%.",
        "",
        "| ranks | data | embeddings | turns | dense | rows | exchange | step | processor time | "
        "sent |",
        "|--:|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for key in dict.fromkeys(tuple(line[part] for part in _KEYS) for line in results["lines"]):
        found = [each for each in results["lines"] if tuple(each[part] for part in _KEYS) == key]
        pairs = {
            part: [statistics.median(each[side][part] for each in found)
                   for side in ("planned", "measured")]
            for part in (*PARTS, "step", "processor")
        }  # fmt: skip
        words = [
            *map(str, key),
            str(len(found)),
            *(f"{1000 * planned:.1f} / {1000 * real:.1f}" for planned, real in
              (pairs[part] for part in PARTS)),
            *(_pair(pairs[part][0], pairs[part][1], LIMITS["time"], _milliseconds)
              for part in ("step", "processor")),
            _sent(found),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(words)} |")
    lines += ["", "The exchange of a rank includes its waiting for slower ones. Two ranks average "
              "gradients within the backward pass: that is measured as dense, and planned as "
              "exchange."]  # fmt: skip
    if results["load"] > 1.5 * results["cores"]:
        lines += ["", "The machine was busy with other work: steps waited for a core, and only "
                  "processor time tells."]  # fmt: skip
    return "\n".join([*lines, ""])


def _sent(found: Sequence[Mapping[str, Any]]) -> str:
    if found[0]["planned_sent"] is None:
        return "–"
    planned, real = (statistics.median(each[f"{side}_sent"] for each in found)
                     for side in ("planned", "measured"))  # fmt: skip
    return _pair(planned, real, LIMITS["sent"], format_bytes)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


def _pair(planned: float, real: float, limit: float, words: Callable[[float], str]) -> str:
    off = planned / real - 1 if real else 0.0
    text = f"{words(planned)} / {words(real)} ({off:+.0%})"
    return text if abs(off) <= limit else f"**{text}**"


def main() -> None:
    """Run the benchmark as a command."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.plan.times")
    parser.add_argument("--ranks", default="2", help="numbers of ranks, by commas")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each cell")
    parser.add_argument("--data", type=Path, help="folder of the data sets; else synthetic alone")
    parser.add_argument("--seconds", type=float, help="end what runs after so many seconds")
    parser.add_argument("--quick", action="store_true", help="one cell, few steps")
    parser.add_argument("--work", type=Path, help="folder for files that show what is done")
    parser.add_argument("--out", type=Path, help="also write the results to this folder")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    sizes = [int(word) for word in given.ranks.split(",")]
    cores = len(os.sched_getaffinity(0))
    if max(sizes) > cores:
        raise SystemExit(f"--ranks {given.ranks}: this process may use {cores} cores, and "
                         "each rank needs one")  # fmt: skip
    words = f"--ranks {given.ranks} --repeats {given.repeats}" + " --data DATA" * bool(given.data)
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        benchmark = Benchmark(
            name="plan-times",
            command=f"python -m benchmarks.plan.times {words}",
            about="the time of a step that `outsize plan` predicts beside that of runs",
            run=partial(
                run, sizes=sizes, repeats=given.repeats, work=work.resolve(),
                data=given.data and given.data.resolve(), seconds=given.seconds,
            ),
            table=table,
        )  # fmt: skip
        measure(benchmark, given.out, quick=given.quick)


if __name__ == "__main__":
    main()
