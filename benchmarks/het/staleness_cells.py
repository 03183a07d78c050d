"""Single cells of the `staleness` benchmark, at sizes of your own.

    python -m benchmarks.het.staleness_cells --ranks 8 --steps 300 --skew 1.05 --skew 1.22 \\
        --mode synchronous --mode "read 100, write 10, int8" --out benchmarks/results/mine

Cells run one after the other, so that their times can be compared. `<out>.md` and `<out>.json` are
rewritten after each cell.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.het import staleness
from benchmarks.runner import typed_command
from outsize.bench.runner import results_page, write_results
from outsize.reporting.environment import environment


def main() -> None:
    """Train the requested cells."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", action="append", choices=list(staleness.MODES), required=True)
    parser.add_argument("--skew", action="append", type=float, required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=38_462, help="rows per feature")
    parser.add_argument("--test", type=int, default=100_000, help="test examples")
    parser.add_argument("--out", type=Path, help="path of the results files, without ending")
    given = parser.parse_args()
    sizes: dict[str, Any] = {
        "num_ranks": given.ranks,
        "batch_size": given.batch,
        "steps": given.steps,
        "rows_per_feature": given.rows,
        "num_test": given.test,
    }
    results: dict[str, Any] = {
        "command": typed_command("benchmarks.het.staleness_cells"),
        "environment": environment(),
        "sizes": sizes,
        "rows": [],
    }
    for skew in given.skew:
        for mode in given.mode:
            cell = {"mode": mode, "skew": skew, **sizes}
            results["rows"] += staleness.train_cells([cell], lambda text: print(text, flush=True))
            if given.out is not None:
                title = f"staleness: {staleness.ABOUT}"
                page = results_page(title, results, staleness.table(results))
                write_results(given.out, results, page)
    print(staleness.table(results))


if __name__ == "__main__":
    main()
