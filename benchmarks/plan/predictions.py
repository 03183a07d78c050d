"""What `outsize plan` predicts, beside what runs of two ranks take.

    python -m benchmarks.plan.predictions --data DATA --out benchmarks/results

DATA is a folder with `ml1m.parquet`, `us_flights_2024_01.parquet` and `sba_loans.parquet`. Every
cell is planned in a process of its own and then trained on two ranks: its memory as it counts it,
the largest resident memory of its first rank, the bytes that ranks send, and the hit rate.
`--only DATA` measures the cells of one data set again, and keeps the others of the results in OUT.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.plan.planned_cells import CELLS, RUNS, TRAIN, Cell
from outsize.bench import Benchmark, measure
from outsize.bench.runner import Say, results_stem
from outsize.reporting.environment import environment
from outsize.reporting.quantities import format_bytes
from outsize.training.row_counts import sent_bytes
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import override, to_toml
from outsize.training.toml_text import parse_toml

_NAME = "plan-predictions"
NUM_RANKS = 2
LIMITS = {"peak": 0.15, "sent": 0.10, "hit_rate": 0.03}
Kept = Mapping[Cell, dict[str, Any]]


def run(
    quick: bool, say: Say, data: Path, steps: int, work: Path, kept: Kept | None = None
) -> dict[str, Any]:
    """Plan and train every cell that is not kept; with `quick`, the one that needs no data."""
    cells = [Cell("synthetic", "cache, s = 10")] if quick else CELLS
    found: list[dict[str, Any]] = []
    for cell in cells:
        if kept is not None and cell in kept:
            found.append(kept[cell])
            continue
        folder = work / re.sub(r"[^a-z0-9]+", "-", f"{cell.data} {cell.store} {cell.negatives}")
        folder.mkdir(parents=True, exist_ok=True)
        tree = parse_toml(RUNS[cell.data].format(data=data) + TRAIN)
        settings = [f"train.steps={20 if quick else steps}", "train.device=cpu", *cell.settings]
        (folder / "run.toml").write_text(to_toml(override(tree, settings)))
        is_first = cell.data not in [line["data"] for line in found]
        line = {
            "data": cell.data,
            "store": cell.store,
            "negatives": cell.negatives,
            "predicted": _once(folder / "plan.json", partial(_plan, folder, is_first)),
            "measured": _once(folder / "run.json", partial(_train, folder)),
            "measured_at": environment()["measured_at"],
        }
        say(json.dumps(line))
        found.append(line)
    return {"num_ranks": NUM_RANKS, "steps": steps, "cells": found}


def cells_to_keep(results: Mapping[str, Any], only: str, steps: int) -> Kept:
    """The cells of earlier results on other data than `only`, each with when it was measured.

    Args:
        results: Earlier results of this benchmark.
        only: The data set that is measured again.
        steps: Steps of each run now.
    """
    if only not in RUNS:
        raise SystemExit(f"--only must be one of {', '.join(RUNS)}, but got {only!r}")
    then, now = dict(results["environment"]), dict(environment())
    at = then.pop("measured_at")
    now.pop("measured_at")
    if then != now or results["steps"] != steps:
        raise SystemExit("the earlier results are of another machine, other versions or another "
                         "number of steps: measure all cells, without --only")  # fmt: skip
    cells = {Cell(c["data"], c["store"], c["negatives"]): c for c in results["cells"]}
    return {k: {"measured_at": at, **line} for k, line in cells.items() if k.data != only}


def _once(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What an earlier call has written, or what is made now."""
    if not path.exists():
        path.write_text(json.dumps(make()))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _plan(folder: Path, is_first: bool) -> dict[str, Any]:
    """What the plan predicts; if the data may not be encoded yet, of a second plan."""
    words = ["plan", folder / "run.toml", "--ranks", NUM_RANKS, "--json"]
    if is_first:
        _python("-m", "outsize", *words)  # encodes the data, which takes memory of its own
    return _predicted(json.loads(_python("-m", "outsize", *words)))


def _train(folder: Path) -> dict[str, Any]:
    """What the run takes."""
    out = folder / "out"
    _python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", NUM_RANKS,
            "-m", "benchmarks.plan.one_rank", folder / "run.toml", out)  # fmt: skip
    return _measured(out)


def _predicted(plan: Mapping[str, Any]) -> dict[str, Any]:
    traffic = plan["traffic"]
    return {
        "memory": plan["memory"]["bytes_by_device"],
        "peak": plan["peak"]["total_bytes"],
        "sent": None if traffic is None else sum(traffic["sent_bytes"].values()),
        "hit_rate": None if traffic is None else traffic["hit_rate"],
        "checkpoint": plan["checkpoint_bytes"],
    }


def _measured(out: Path) -> dict[str, Any]:
    lines = RunFolder(out).metrics()
    counted = [line for line in lines if "hit_rate" in line]
    reads = sum(line["reads"] for line in counted)
    saved = max((out / "checkpoint").glob("step-*"))
    return {
        "memory": json.loads((out / "summary.json").read_text())["memory"]["bytes_by_device"],
        "peak": json.loads((out / "peak-0.json").read_text()),
        "sent": sum(sent_bytes(lines).values()) if counted else None,
        "hit_rate": sum(line["hit_rate"] * line["reads"] for line in counted) / reads
        if reads
        else None,
        "checkpoint": sum(path.stat().st_size for path in saved.iterdir()),
    }


def _python(*words: object) -> str:
    """Run Python in a process of its own; returns what it prints."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{words} failed: {done.stderr[-2000:]}")
    return done.stdout


def table(results: dict[str, Any]) -> str:
    """Results as Markdown."""
    lines = [
        f"{results['num_ranks']} ranks, {results['steps']} steps, batches of 512 per rank. Memory "
        "is what the run counts on all ranks,",
        "peak the largest resident memory of the first rank, sent the sum over ranks and steps. "
        "Predicted / measured:",
        "",
        "| data | embeddings | negatives | memory | peak | sent | hit rate | checkpoint |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in results["cells"]:
        planned, found = cell["predicted"], cell["measured"]
        memory = "equal" if planned["memory"] == found["memory"] else "**not equal**"
        words = [
            cell["data"],
            cell["store"],
            cell["negatives"] or "–",
            f"{format_bytes(_bytes(found['memory']))}, {memory}",
            _pair(planned["peak"], found["peak"], LIMITS["peak"]),
            _pair(planned["sent"], found["sent"], LIMITS["sent"]),
            _rates(planned["hit_rate"], found["hit_rate"]),
            _pair(planned["checkpoint"], found["checkpoint"], LIMITS["sent"]),
        ]
        lines.append(f"| {' | '.join(words)} |")
    lines += ["", "Bold is what lies outside: memory equal, peak within 15%, bytes within 10%, hit "
              "rate within 0.03."]  # fmt: skip
    return "\n".join([*lines, *_times(results["cells"]), ""])


def _times(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """When which cells were measured, if not all were at once."""
    by_time: dict[str, list[str]] = {}
    for cell in cells:
        by_time.setdefault(cell.get("measured_at", "")[:10], []).append(cell["data"])
    if len(by_time) < 2:
        return []
    words = [f"{', '.join(dict.fromkeys(data))} ({day})" for day, data in by_time.items()]
    return ["", f"Measured: {'; '.join(words)}."]


def _bytes(memory: Mapping[str, Mapping[str, int]]) -> int:
    return sum(sum(kinds.values()) for kinds in memory.values())


def _pair(planned: float | None, found: float | None, limit: float) -> str:
    if planned is None or found is None:
        return "–"
    text = f"{format_bytes(planned)} / {format_bytes(found)} ({planned / found - 1:+.1%})"
    return text if abs(planned / found - 1) <= limit else f"**{text}**"


def _rates(planned: float | None, found: float | None) -> str:
    if planned is None or found is None:
        return "–"
    text = f"{planned:.3f} / {found:.3f}"
    return text if abs(planned - found) <= LIMITS["hit_rate"] else f"**{text}**"


def main() -> None:
    """Run the benchmark as a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, prog="python -m benchmarks.plan.predictions"
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets")
    parser.add_argument("--steps", type=int, default=120, help="steps of each run")
    parser.add_argument("--work", type=Path, help="folder of cells that are done")
    parser.add_argument("--quick", action="store_true", help="one small cell")
    parser.add_argument("--out", type=Path, help="also write the results to this folder")
    parser.add_argument("--only", metavar="DATA", help="measure these cells, keep those in --out")
    given = parser.parse_args()
    kept = None
    if given.only is not None:
        if given.out is None:
            parser.error("--only needs --out, the folder of the results to keep")
        stem = results_stem(_NAME, environment())
        kept = cells_to_keep(
            json.loads((given.out / f"{stem}.json").read_text()), given.only, given.steps
        )
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        benchmark = Benchmark(
            name=_NAME,
            command="python -m benchmarks.plan.predictions --data DATA",
            about="what `outsize plan` predicts beside what runs take",
            run=partial(run, data=given.data.resolve(), steps=given.steps, work=work, kept=kept),
            table=table,
        )
        measure(benchmark, given.out, quick=given.quick)


if __name__ == "__main__":
    main()
