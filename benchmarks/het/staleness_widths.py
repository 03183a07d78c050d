"""HET's Figure 9(c): the cost of wider rows, with and without a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.het.staleness_runs import ZIPF, default_ranks, describe, train_cells
from benchmarks.runner import run_command
from outsize.bench import Benchmark

ABOUT = "bytes and time of a step by the width of rows, up to 4,096 (HET, Figure 9c)"
_MODES = ("synchronous", "read 100, write 10", "read 100, write 10, int8")


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Train every width in every mode, one run after the other."""
    sizes: dict[str, Any] = {
        "num_ranks": 2 if quick else default_ranks(),
        "batch_size": 16 if quick else 128,
        "steps": 12 if quick else 40,
        "rows_per_feature": 100 if quick else 3_846,
        "num_test": 500,
        "log_every": 5,
    }
    rows: list[dict[str, Any]] = []
    for dim in (8, 16) if quick else (16, 64, 256, 1024, 4096):
        for mode in _MODES:
            rows += train_cells([{"dim": dim, "mode": mode, "skew": ZIPF, **sizes}], say)
    return {"sizes": sizes, "rows": rows}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    sizes, rows = results["sizes"], results["rows"]
    lines = [
        f"{describe(sizes)}, Zipf {ZIPF}, WDL. Bytes are the mean of {sizes['steps']} steps, the "
        "cold cache and the last flush included; time is the median over the second half.\n",
        "| dim | mode | MB per step | fewer bytes | ms per step | speed-up |",
        "|--:|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        base = next(r for r in rows if r["dim"] == row["dim"] and r["mode"] == "synchronous")
        total, everything = (sum(r["sent_bytes"].values()) for r in (row, base))
        lines.append(
            f"| {row['dim']:,} | {row['mode']} | {total / sizes['steps'] / 1e6:.2f} "
            f"| {1 - total / everything:.1%} | {row['step_ms']:.1f} "
            f"| {base['step_ms'] / row['step_ms']:.2f} |"
        )
    return "\n".join(lines) + "\n"


BENCHMARK = Benchmark(
    "staleness-widths", "python -m benchmarks.het.staleness_widths", ABOUT, run, table
)

if __name__ == "__main__":
    run_command(BENCHMARK)
