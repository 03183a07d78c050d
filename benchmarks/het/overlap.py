"""What exchanging rows one batch ahead hides of the exchange, over 1 Gbit between two hosts.

    sudo python -m benchmarks.het.overlap [--turns 5] [--steps 120] [--out benchmarks/results]

The hosts are those of `benchmarks.het.one_gigabit`: two network namespaces with a limited link, one
rank and one core each, the threads of an exchange included. Every mode is trained with and without
overlap, and all take turns. The share that is hidden is (step − overlapped step) / exchange, where
the exchange is what the mode without overlap spends in rounds: on a core of its own an exchange
could also hide its work on the processor, here only the time that it waits for the network. The
share that is not waited for is 1 − wait / exchange with overlap: its rounds take longer, as they
share the core and the link with the computation and its own messages.

What the updates cost that a read misses one step longer: `benchmarks.het.overlap_quality`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.het.one_gigabit import train, two_hosts
from benchmarks.het.staleness_runs import steady_step_s
from outsize.bench import Benchmark, measure
from outsize.bench.runner import Say
from outsize.training.run_folder import RunFolder

ABOUT = "exchanging rows one batch ahead, over 1 Gbit"
PAIRS = {
    "synchronous": "synchronous, overlapped",
    "synchronous, int8": "synchronous, int8, overlapped",
    "s = 10, int8": "s = 10, int8, overlapped",
}
_RATE, _BATCH, _NUM_RANKS = "1gbit", 512, 2
_MODES = [mode for pair in PAIRS.items() for mode in pair]
_COMPARED = ("synchronous", "synchronous, int8")  # speed-ups are over these


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=120, help="steps of a run whose time counts")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("network namespaces need root: run with sudo")
    sized = replace(BENCHMARK, run=partial(run, turns=given.turns, steps=given.steps))
    if (given.turns, given.steps) != (5, 120):
        sized = replace(
            sized, command=f"{BENCHMARK.command} --turns {given.turns} --steps {given.steps}"
        )
    measure(sized, given.out, quick=given.quick)


def run(quick: bool, say: Say, turns: int = 5, steps: int = 120) -> dict[str, Any]:
    """Train all modes in turns."""
    sizes: dict[str, Any] = {"dims": [128, 512], "steps": steps, "turns": turns}
    if quick:
        sizes = {"dims": [128], "steps": 20, "turns": 1}
    return {"sizes": sizes, "times": measure_times(sizes, say)}


def measure_times(sizes: Mapping[str, Any], say: Say) -> list[dict[str, Any]]:
    """Seconds of every turn, by width and mode."""
    found: dict[tuple[int, str], dict[str, Any]] = {
        (dim, mode): {"dim": dim, "mode": mode, "step_s": [], "exchange_s": [], "wait_s": []}
        for dim in sizes["dims"]
        for mode in _MODES
    }
    with two_hosts(_RATE), tempfile.TemporaryDirectory() as folder:
        for turn in range(sizes["turns"]):
            for (dim, mode), cell in found.items():
                out = Path(folder) / f"{turn}-{dim}-{_MODES.index(mode)}"
                given = argparse.Namespace(ranks=1, batch=_BATCH, dim=dim, steps=sizes["steps"])
                train(mode, out, given, pinned=True)
                _note(cell, RunFolder(out).metrics(), sizes["steps"])
                shutil.rmtree(out)  # a checkpoint of wide rows is gigabytes
                say(f"turn {turn + 1}, rows of {dim}, {mode}: {cell['step_s'][-1] * 1e3:.1f} ms")
    return list(found.values())


def _note(cell: dict[str, Any], lines: Sequence[Mapping[str, Any]], steps: int) -> None:
    """Add what a run took per step and rank, in its second half."""
    lines = [line for line in lines if line["split"] == "train"]
    lines = lines[len(lines) // 2 :]
    cell["step_s"].append(steady_step_s(lines, _BATCH * _NUM_RANKS))
    log_every = max(10, steps // 20)
    for name in ("exchange_s", "wait_s"):
        per_step = [line[name] / log_every / _NUM_RANKS for line in lines if name in line]
        cell[name].append(statistics.median(per_step) if per_step else None)


def hidden_shares(plain: Mapping[str, Any], overlapped: Mapping[str, Any]) -> list[float]:
    """The share of the exchange that is hidden, turn by turn."""
    turns = zip(plain["step_s"], overlapped["step_s"], plain["exchange_s"], strict=True)
    return [(before - after) / exchange for before, after, exchange in turns]


def table(results: dict[str, Any]) -> str:
    """Times by width and mode."""
    sizes = results["sizes"]
    lines = [
        f"Two hosts of one core and one rank each, {_RATE} between them; batch {_BATCH} per rank, "
        "26 features of 38,462 rows (Zipf 1.05), cache of 10% of the rows, "
        f"{sizes['steps']} steps, the first half left out; median of {sizes['turns']} turns "
        "(range).",
        "",
        "| rows of | mode | ms per step | speed-up | over int8 | ms in rounds | ms waited for them "
        "| not waited for | hidden |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    cells = {(cell["dim"], cell["mode"]): cell for cell in results["times"]}
    plain_of = {overlapped: plain for plain, overlapped in PAIRS.items()}
    for (dim, mode), cell in cells.items():
        step = statistics.median(cell["step_s"])
        first, second = (statistics.median(cells[dim, m]["step_s"]) for m in _COMPARED)
        is_overlapped = mode in plain_of
        waited = cell["wait_s"] if is_overlapped else cell["exchange_s"]
        hidden = hidden_shares(cells[dim, plain_of[mode]], cell) if is_overlapped else []
        free = 1 - statistics.median(waited) / statistics.median(cell["exchange_s"])
        lines.append(
            f"| {dim} | {mode} | {_range(cell['step_s'], 1e3)} "
            f"| {first / step:.2f} | {second / step:.2f} "
            f"| {statistics.median(cell['exchange_s']) * 1e3:.1f} "
            f"| {statistics.median(waited) * 1e3:.1f} "
            f"| {f'{free:.0%}' if is_overlapped else ''} "
            f"| {_range(hidden, 100, '.0f', '%') if hidden else ''} |"
        )
    return "\n".join(lines) + "\n"


def _range(values: Sequence[float], factor: float, form: str = ".1f", unit: str = "") -> str:
    middle, *edges = (
        f"{value * factor:{form}}{unit}"
        for value in (statistics.median(values), min(values), max(values))
    )
    return f"{middle} ({' to '.join(edges)})"


BENCHMARK = Benchmark("overlap", "python -m benchmarks.het.overlap", ABOUT, run, table)

if __name__ == "__main__":
    main()
