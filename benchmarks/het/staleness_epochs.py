"""HET's Figure 11: AUC by epoch of WDL and DFM, synchronous, cached and asynchronous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.het.staleness_runs import ZIPF, default_ranks, describe, train_cells
from benchmarks.runner import run_command
from outsize.bench import Benchmark

ABOUT = "AUC by epoch with bounded staleness, for WDL and DFM (HET, Figure 11)"
_MODES = ("synchronous", "s = 10", "s = 100", "read 100, write 10, int8", "asynchronous")


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Train both models in every mode for several epochs."""
    sizes: dict[str, Any] = {
        "num_ranks": 2 if quick else min(4, default_ranks()),
        "batch_size": 16 if quick else 128,
        "steps": 6 if quick else 250,
        "epochs": 2 if quick else 4,
        "rows_per_feature": 200 if quick else 38_462,
        "num_test": 500 if quick else 40_000,
    }
    cells = [
        {"model": model, "mode": mode, "skew": ZIPF, **sizes}
        for model in ("WDL", "DFM")
        for mode in _MODES
    ]
    return {"sizes": sizes, "rows": train_cells(cells, say)}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    sizes, rows = results["sizes"], results["rows"]
    epochs = range(1, sizes["epochs"] + 1)
    lines = [
        f"{describe(sizes)}, Zipf {ZIPF}, rows of 128 numbers. AUC of the validation split after "
        f"each epoch of {sizes['steps']} steps.\n",
        f"| model | mode | {' | '.join(map(str, epochs))} |",
        "|---|---|" + "--:|" * len(epochs),
    ]
    for row in rows:
        curve = " | ".join(f"{auc:.4f}" for auc in row["validation_auc"])
        lines.append(f"| {row['model']} | {row['mode']} | {curve} |")
    return "\n".join(lines) + "\n"


BENCHMARK = Benchmark(
    "staleness-epochs", "python -m benchmarks.het.staleness_epochs", ABOUT, run, table
)

if __name__ == "__main__":
    run_command(BENCHMARK)
