"""What exchanging rows one batch ahead costs in AUC: every read misses the last step, too.

    python -m benchmarks.het.overlap_quality [--quick] [--out benchmarks/results]

Two ranks train on a synthetic log, with and without overlap, without a cache and with one. Three
seeds: differences are taken seed by seed, and shown with their range beside the range of the seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.het.staleness_runs import ZIPF, train_cells
from benchmarks.runner import run_command
from outsize.bench import Benchmark
from outsize.bench.runner import Say

ABOUT = "AUC of training with rows that are read one batch ahead"
PAIRS = {
    "synchronous": "synchronous, overlapped",
    "s = 10, int8": "s = 10, int8, overlapped",
}
_SIZES = {
    "num_ranks": 2, "batch_size": 256, "steps": 400, "rows_per_feature": 10_000, "dim": 16,
    "num_test": 20_000, "skew": ZIPF,
}  # fmt: skip
_QUICK = {**_SIZES, "batch_size": 16, "steps": 12, "rows_per_feature": 200, "num_test": 500}


def run(quick: bool, say: Say) -> dict[str, Any]:
    """Train every mode with every seed."""
    sizes, seeds = (_QUICK, 1) if quick else (_SIZES, 3)
    modes = [mode for pair in PAIRS.items() for mode in pair]
    cells = [{"mode": mode, "seed": seed, **sizes} for seed in range(seeds) for mode in modes]
    return {"sizes": sizes, "seeds": seeds, "rows": train_cells(cells, say, jobs=1)}


def table(results: dict[str, Any]) -> str:
    """A line per mode, those with overlap compared with the ones without."""
    sizes, rows = results["sizes"], results["rows"]
    lines = [
        f"{sizes['num_ranks']} ranks, batch {sizes['batch_size']} each, 26 features of "
        f"{sizes['rows_per_feature']:,} rows of {sizes['dim']} numbers (Zipf {sizes['skew']}), "
        f"HET's WDL model and SGD, {sizes['steps']} steps, a cache of 10% of the rows; test AUC "
        f"over {sizes['num_test']:,} examples, mean of {results['seeds']} seeds (range).",
        "",
        "| mode | AUC | difference from without overlap, seed by seed |",
        "|---|--:|--:|",
    ]
    for plain, overlapped in PAIRS.items():
        before, after = _aucs(rows, plain), _aucs(rows, overlapped)
        found = [late - early for early, late in zip(before, after, strict=True)]
        lines += [
            f"| {plain} | {_mean_and_range(before, '.4f')} |  |",
            f"| {overlapped} | {_mean_and_range(after, '.4f')} "
            f"| {_mean_and_range(found, '+.5f')} |",
        ]
    return "\n".join(lines) + "\n"


def _aucs(rows: Sequence[Mapping[str, Any]], mode: str) -> list[float]:
    """Test AUC of every seed, in their order."""
    return [row["test_auc"] for row in rows if row["mode"] == mode]


def _mean_and_range(values: Sequence[float], form: str) -> str:
    return f"{statistics.mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


BENCHMARK = Benchmark(
    "overlap-quality", "python -m benchmarks.het.overlap_quality", ABOUT, run, table
)

if __name__ == "__main__":
    run_command(BENCHMARK)
