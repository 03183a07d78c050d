"""How far a prediction reaches in a graph: label propagation by steps beside GraphSAGE by layers.

    python -m benchmarks.het.graph_reach --data FOLDER --work CELLS [--out benchmarks/results]

Papers of the ACL Anthology and their authors; the class of a paper is its venue. Two steps lead
from a paper to the papers of its authors, and so do two layers. `--work` keeps finished cells; two
layers are the cells of `graph_quality`, which may be there already.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.het.graph_quality import SETTINGS, propagations, run_cell, run_file
from benchmarks.het.plain_graphsage import PlainSettings
from benchmarks.runner import benchmark_parser
from outsize.bench import Benchmark, measure
from outsize.data import GraphDataConfig
from outsize.files import write_text_atomically
from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode

_GRAPH = "acl"
_FAN_OUTS = {2: (-1, 20), 4: (-1, 20, 5, 5)}
_SEEDS = 3
_STEPS = (2, 4, 6, 8, 10, 12, 14, 16, 18, 20)


def compare(quick: bool, say: Callable[[str], None], given: argparse.Namespace) -> dict[str, Any]:
    """Accuracies of both, by reach."""
    data = decode(RunConfig, run_file(_GRAPH, given.data, SETTINGS[_GRAPH], 0), "benchmark").data
    assert isinstance(data, GraphDataConfig)
    found = propagations(data.build(), 4 if quick else _STEPS[-1])
    steps = [{"steps": n, **found[n - 1]} for n in _STEPS if n <= len(found)]
    layers = []
    for num, fan_out in _FAN_OUTS.items():
        for seed in range(1 if quick else _SEEDS):
            settings = replace(SETTINGS[_GRAPH], fan_out=fan_out)
            settings = replace(settings, epochs=1) if quick else settings
            cell = _cell(given, settings, seed)
            best = {"validation": cell["validation"], "test": cell["test"]}
            layers.append({"layers": num, "seed": seed, **best})
            say(f"{num} layers, seed {seed}: {best['test']:.4f}")
    return {"epochs": settings.epochs, "steps": steps, "layers": layers}


def _cell(given: argparse.Namespace, settings: PlainSettings, seed: int) -> dict[str, Any]:
    """The accuracies of GraphSAGE: those in `--work` if they are of the same settings."""
    name = f"{_GRAPH}-outsize" if settings == SETTINGS[_GRAPH] else f"{_GRAPH}-deeper"
    path = given.work / f"{name}-{seed}.json"
    if path.exists():
        cell: dict[str, Any] = json.loads(path.read_text())
        if cell["settings"] == json.loads(json.dumps(asdict(settings))):
            return cell
    cell = run_cell(_GRAPH, "outsize", seed, given.data, settings)
    given.work.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, json.dumps(cell, indent=1) + "\n")
    return cell


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


def _parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = benchmark_parser(BENCHMARK)
    parser.add_argument("--data", required=True, help="the folder of the graphs")
    parser.add_argument("--work", type=Path, required=True, help="folder that keeps finished cells")
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
