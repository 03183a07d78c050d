"""Ablations of CCE, one setting changed at a time: codes, columns, weights, number of clusterings.

    python -m benchmarks.cce.choices RUN.toml --budgets 2048,8192,32768 --seeds 3

Every variant is the run with CCE tables and one setting changed. Finished runs are kept in
`--work`, so an interrupted grid continues where it stopped.
"""

import argparse
import json
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.runner import typed_command, write_page
from outsize.training import load_config, train

VARIANTS = {
    "as it is": [],
    "codes of each column (the text)": ["embeddings.shared=false"],
    "8 columns": ["embeddings.columns=8"],
    "2 columns": ["embeddings.columns=2"],
    "ids weighed alike": ["embeddings.recluster.weighted=false"],
    "1 clustering": ["embeddings.recluster.count=1"],
    "2 clusterings": ["embeddings.recluster.count=2"],
    "6 clusterings": ["embeddings.recluster.count=6"],
    "12 clusterings": ["embeddings.recluster.count=12"],
    "24 clusterings": ["embeddings.recluster.count=24"],
}


def one_run(arguments: argparse.Namespace, cell: tuple[str, int, int]) -> dict[str, Any]:
    """The test metrics of one variant, budget and seed."""
    torch.set_num_threads(1)
    variant, budget, seed = cell
    name = "".join(letter if letter.isalnum() else "-" for letter in variant)
    done = arguments.work / f"{arguments.run.stem}-{name}-{budget}-{seed}.json"
    if not done.exists():
        asked = ["embeddings.kind=tables", "embeddings.method=cce", f"seed={seed}"]
        asked += [f"embeddings.max_params={budget}", *arguments.set, *VARIANTS[variant]]
        result = train(load_config(arguments.run, asked), quiet=True)
        row = {"variant": variant, "budget": budget, "seed": seed, **result.test}
        done.write_text(json.dumps(row))
    found: dict[str, Any] = json.loads(done.read_text())
    return found


def main() -> None:
    """Run the grid and write its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--budgets", default="2048,8192,32768")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="override a setting")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--work", type=Path, default=Path("runs/cce-choices"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    load_config(arguments.run, arguments.set).data.build()  # encode before several runs want it
    budgets = [int(word) for word in arguments.budgets.split(",")]
    cells = [(v, b, s) for s in range(arguments.seeds) for b in budgets for v in VARIANTS]
    with ProcessPoolExecutor(arguments.workers, get_context("spawn")) as pool:
        rows = list(pool.map(partial(one_run, arguments), cells))
    command, name = typed_command("benchmarks.cce.choices"), f"cce-choices-{arguments.run.stem}"
    title, body = f"Choices within CCE: {arguments.run.name}", table(arguments.seeds, rows, budgets)
    write_page(name, title, command, body, arguments.out, rows=rows)


def table(seeds: int, rows: list[dict[str, Any]], budgets: list[int]) -> str:
    """The results as Markdown."""
    lines = [
        f"Test BCE and AUC at the best validation, mean of {seeds} seeds (range of BCE); caps in "
        "parameters per table.\n",
        f"| variant | {' | '.join(f'{budget:,}' for budget in budgets)} |",
        "|---|" + "--:|" * len(budgets),
    ]
    for variant in VARIANTS:
        cells = []
        for budget in budgets:
            found = [r for r in rows if (r["variant"], r["budget"]) == (variant, budget)]
            losses, auc = [r["loss"] for r in found], statistics.mean(r["auc"] for r in found)
            spread = f"({min(losses):.4f} to {max(losses):.4f})"
            cells.append(f"{statistics.mean(losses):.4f} {spread}, AUC {auc:.4f}")
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
