"""Some cells of `outsize bench staleness`, at sizes of your own.

    python benchmarks/staleness_cells.py --ranks 8 --steps 300 --skew 1.05 --skew 1.22 \\
        --mode synchronous --mode "read 100, write 10, int8" --out benchmarks/results/mine

Cells run one after the other, so that their times can be compared; `<out>.md` and `<out>.json` are
written anew after each.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from benchmarks.het import staleness
from outsize.files import write_text_atomically
from outsize.reporting.environment import environment


def main() -> None:
    """Train the cells asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", action="append", choices=list(staleness.MODES), required=True)
    parser.add_argument("--skew", action="append", type=float, required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=38_462, help="of each feature")
    parser.add_argument("--test", type=int, default=100_000, help="examples")
    parser.add_argument("--out", type=Path, help="where to, without an ending")
    given = parser.parse_args()
    sizes: dict[str, Any] = {
        "num_ranks": given.ranks,
        "batch_size": given.batch,
        "steps": given.steps,
        "rows_a_feature": given.rows,
        "num_test": given.test,
    }
    results: dict[str, Any] = {
        "command": f"python benchmarks/staleness_cells.py {shlex.join(sys.argv[1:])}",
        "environment": environment(),
        "sizes": sizes,
        "rows": [],
    }
    for skew in given.skew:
        for mode in given.mode:
            cell = {"mode": mode, "skew": skew, **sizes}
            results["rows"] += staleness.train_cells([cell], lambda text: print(text, flush=True))
            keep(results, given.out)
    print(staleness.table(results))


def keep(results: dict[str, Any], out: Path | None) -> None:
    """Write what there is so far."""
    if out is None:
        return
    facts = "".join(f"- {key}: {value}\n" for key, value in results["environment"].items())
    text = f"# staleness: {staleness.ABOUT}\n\n`{results['command']}`\n\n{facts}\n"
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(out.with_suffix(".json"), json.dumps(results, indent=1) + "\n")
    write_text_atomically(out.with_suffix(".md"), text + staleness.table(results))


if __name__ == "__main__":
    main()
