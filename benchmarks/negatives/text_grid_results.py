"""The results of `benchmarks.negatives.text_grid` as Markdown."""

from __future__ import annotations

import statistics
from typing import Any

_MIB = 1 << 20


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    rates, betas = results["rates"], results["betas"]
    encoder = results["encoder"][0].upper() + results["encoder"][1:]
    items = "" if results["items"] is None else f" on {results['items']:,} pairs"
    lines = [
        f"{encoder}{items}. Each method had {len(rates) * len(betas)} "
        f"trials (rates × {_listed(rates)}, β {_listed(betas)}), and the best validation MRR@10 "
        f"chose; then {results['seeds']} seeds were trained and tested where their validation was "
        "best. Mean (range) over seeds; all items are ranked. Seconds are of training steps "
        "(processor time on a CPU), without filling a cache and without validation. Peak memory is "
        "above that of the program before it read data. Every item is one pair, so that logQ "
        "would change nothing.\n",
        "| negatives | batch | rate, β | seeds | test MRR@10 | test recall@10 | validation MRR@10 "
        "| s to train | ms per step | peak MiB |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in results["rows"]:
        runs = row["runs"]
        cell, steps = runs[0]["cell"], runs[0]["steps"]
        seconds = statistics.median(run["train_s"] for run in runs)
        peak = max(run["peak_bytes"] for run in runs) / _MIB
        scores = (_score(runs, *where) for where in (
            ("test", "mrr@10"), ("test", "recall@10"), ("validation", "mrr@10")))  # fmt: skip
        lines.append(
            f"| {row['method']} | {row['batch']} | {cell['rate']:g}, {cell['beta']:g} | "
            f"{len(runs)} | {' | '.join(scores)} | {seconds:.0f} | {1000 * seconds / steps:.0f} | "
            f"{peak:.0f} |"
        )
    return "\n".join(lines) + "\n"


def _score(runs: list[dict[str, Any]], split: str, metric: str) -> str:
    values = [run[split][metric] for run in runs]
    mean = statistics.mean(values)
    if len(values) == 1:
        return f"{mean:.4f}"
    return f"{mean:.4f} ({min(values):.4f} to {max(values):.4f})"


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
