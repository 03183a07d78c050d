"""What `outsize plan` predicts, beside what runs of two ranks take.

    python -m benchmarks.plan.predictions --data DATA --out benchmarks/results

DATA is a folder with `ml1m.parquet`, `us_flights_2024_01.parquet` and `sba_loans.parquet`. Every
cell is planned in a process of its own and then trained on two ranks: its memory as it counts it,
the largest resident memory of its first rank, the bytes that ranks send, and the hit rate.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from outsize.bench import Benchmark, measure
from outsize.bench.runner import Say
from outsize.reporting.quantities import format_bytes
from outsize.training.row_counts import sent_bytes
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import override, to_toml
from outsize.training.toml_text import parse_toml

NUM_RANKS = 2
LIMITS = {"peak": 0.15, "sent": 0.10, "hit_rate": 0.03}
TRAIN = "[train]\nbatch_size = 512\nearly_stop = false\nlog_every = 20\n"
RUNS = {
    "synthetic": """
[data]
num_train = 400_000
num_validation = 5_000
num_test = 5_000
largest_vocabulary = 100_000
""",
    "ml1m": """
[data]
kind = "tabular"
path = ["{data}/ml1m.parquet"]
label = "label"
categorical = ["user_id", "movie", "age", "gender", "occupation", "zip", "year"]
[data.split]
kind = "hash"
""",
    "us_flights": """
[data]
kind = "tabular"
path = ["{data}/us_flights_2024_01.parquet"]
label = "label"
standardize = ["CRSDepTime", "CRSArrTime", "CRSElapsedTime", "Distance"]
categorical = [
  "DayofMonth", "DayOfWeek", "Marketing_Airline_Network", "Flight_Number_Marketing_Airline",
  "Operating_Airline", "Tail_Number", "Flight_Number_Operating_Airline", "Origin", "Dest",
]
[data.split]
kind = "hash"
""",
    "sba_loans": """
[data]
kind = "tabular"
path = ["{data}/sba_loans.parquet"]
label = "label"
log1p = ["NoEmp", "CreateJob", "RetainedJob", "DisbursementGross", "GrAppv", "SBA_Appv"]
categorical = [
  "Name", "City", "State", "Zip", "Bank", "BankState", "NAICS", "NewExist", "FranchiseCode",
  "UrbanRural", "RevLineCr", "LowDoc",
]
[data.split]
kind = "time"
column = "ApprovalFY"
validation_from = 2007
halves = "hash"
""",
    "ml1m pairs": """
[data]
kind = "interactions"
path = ["{data}/ml1m.parquet"]
query = "user_id"
item = "movie"
query_features = ["age", "gender", "occupation"]
item_features = ["year", "genres"]
multi_valued = ["genres"]
separator = " "
positive = "rating"
at_least = 4.0
[data.split]
kind = "last-of-each"
group = "user_id"
order = "timestamp"
[model]
kind = "two-tower"
dim = 64
hidden = [128]
[embeddings]
dim = 32
""",
}
CACHE = ("embeddings.store=sharded", "embeddings.cache.share=0.1")
STORES = {
    "full tables": ("embeddings.kind=tables",),
    "cce tables": (
        "embeddings.kind=tables",
        "embeddings.method=cce",
        "embeddings.max_params=50_000",
    ),
    "local": (),
    "sharded, bfloat16": ("embeddings.store=sharded", "embeddings.wire=bfloat16"),
    "cache, s = 10": CACHE,
    "cache, s = 0, lru": (
        *CACHE,
        "embeddings.cache.read_staleness=0",
        "embeddings.cache.write_staleness=0",
        "embeddings.cache.eviction=lru",
    ),
    "cache, read 100, write 10, int8": (
        *CACHE,
        "embeddings.cache.read_staleness=100",
        "embeddings.wire=int8",
    ),
}
NEGATIVES = {"cache": ("negatives.kind=cache",)}


@dataclass(frozen=True)
class Cell:
    """One run: its data, its embeddings, and its negatives if it has some."""

    data: str
    store: str
    negatives: str = ""

    @property
    def settings(self) -> tuple[str, ...]:
        """The run's settings besides those of its data."""
        return (*STORES[self.store], *NEGATIVES.get(self.negatives, ()))


CELLS = [
    Cell("synthetic", "full tables"),
    Cell("synthetic", "sharded, bfloat16"),
    Cell("synthetic", "cache, s = 10"),
    Cell("synthetic", "cache, read 100, write 10, int8"),
    Cell("ml1m", "cce tables"),
    Cell("ml1m", "cache, s = 10"),
    Cell("ml1m", "cache, s = 0, lru"),
    Cell("us_flights", "local"),
    Cell("us_flights", "sharded, bfloat16"),
    Cell("us_flights", "cache, read 100, write 10, int8"),
    Cell("sba_loans", "cce tables"),
    Cell("sba_loans", "cache, s = 10"),
    Cell("ml1m pairs", "cache, s = 10", "cache"),
]


def run(quick: bool, say: Say, data: Path, steps: int, work: Path) -> dict[str, Any]:
    """Plan and train every cell; with `quick`, the one that needs no data."""
    cells = [Cell("synthetic", "cache, s = 10")] if quick else CELLS
    found: list[dict[str, Any]] = []
    for cell in cells:
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
        }
        say(json.dumps(line))
        found.append(line)
    return {"num_ranks": NUM_RANKS, "steps": steps, "cells": found}


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
    return "\n".join([*lines, "", "Bold is what lies outside: memory equal, peak within 15%, "
                      "bytes within 10%, hit rate within 0.03.", ""])  # fmt: skip


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
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        benchmark = Benchmark(
            name="plan-predictions",
            command="python -m benchmarks.plan.predictions --data DATA",
            about="what `outsize plan` predicts beside what runs take",
            run=partial(run, data=given.data.resolve(), steps=given.steps, work=work),
            table=table,
        )
        measure(benchmark, given.out, quick=given.quick)


if __name__ == "__main__":
    main()
