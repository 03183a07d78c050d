"""How far a prediction reaches in a graph: label propagation by steps beside GraphSAGE by layers.

    python -m benchmarks.het.graph_reach --data FOLDER [--out benchmarks/results]

Papers of the ACL Anthology and their authors; the class of a paper is its venue. Two steps lead
from a paper to the papers of its authors, and so do two layers.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import outsize
from benchmarks.het.graph_quality import SETTINGS, propagations, run_file
from outsize.bench import Benchmark, measure
from outsize.data import GraphDataConfig
from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode

_GRAPH = "acl"
_FAN_OUTS = {2: (-1, 20), 4: (-1, 20, 5, 5)}
_SEEDS = 3
_STEPS = (2, 4, 6, 8, 10, 12, 14, 16, 18, 20)


def compare(quick: bool, say: Callable[[str], None], given: argparse.Namespace) -> dict[str, Any]:
    """Accuracies of both, by reach."""
    settings = replace(SETTINGS[_GRAPH], epochs=8)
    data = _config(given, settings, 0).data
    assert isinstance(data, GraphDataConfig)
    found = propagations(data.build(), 4 if quick else _STEPS[-1])
    steps = [{"steps": n, **found[n - 1]} for n in _STEPS if n <= len(found)]
    layers = []
    for num, fan_out in _FAN_OUTS.items():
        for seed in range(1 if quick else _SEEDS):
            chosen = replace(settings, fan_out=fan_out, epochs=1 if quick else settings.epochs)
            result = outsize.train(_config(given, chosen, seed), quiet=True)
            best = {"validation": result.best["accuracy"], "test": result.test["accuracy"]}
            layers.append({"layers": num, "seed": seed, "best_step": result.best["step"], **best})
            say(f"{num} layers, seed {seed}: {best['test']:.4f}")
    return {"epochs": settings.epochs, "steps": steps, "layers": layers}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"Accuracy of the venue of papers (`{_GRAPH}`) in %, split as in `graph_quality`. "
        f"GraphSAGE: at the best validation of {results['epochs']} epochs, mean of seeds (least to "
        "most).\n",
        "| method | reach in edges | validation | test |",
        "|---|--:|--:|--:|",
    ]
    for row in results["steps"]:
        cells = [f"{100 * row[split]:.2f}" for split in ("validation", "test")]
        lines.append(f"| label propagation | {row['steps']} | {' | '.join(cells)} |")
    for num in dict.fromkeys(row["layers"] for row in results["layers"]):
        same = [row for row in results["layers"] if row["layers"] == num]
        cells = [_mean(same, split) for split in ("validation", "test")]
        lines.append(f"| GraphSAGE, {num} layers | {num} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _mean(rows: Sequence[Mapping[str, Any]], split: str) -> str:
    values = [100 * row[split] for row in rows]
    return f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _config(given: argparse.Namespace, settings: Any, seed: int) -> RunConfig:
    return decode(RunConfig, run_file(_GRAPH, given.data, settings, seed), "benchmark")


def _parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=BENCHMARK.command, description=BENCHMARK.about)
    parser.add_argument("--data", required=True, help="the folder of the graphs")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the command")
    parser.add_argument("--out", type=Path, help="also write the results to this folder")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Run the comparison as a command."""
    given = _parsed(words)
    chosen = replace(BENCHMARK, run=lambda quick, say: compare(quick, say, given))
    measure(chosen, given.out, quick=given.quick)


BENCHMARK = Benchmark(
    "graph-reach",
    "python -m benchmarks.het.graph_reach",
    "label propagation by steps beside GraphSAGE by layers",
    lambda quick, say: compare(quick, say, _parsed(None)),
    table,
)

if __name__ == "__main__":
    main()
