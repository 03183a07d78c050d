"""Node classification on real graphs: Outsize, the same model in plain torch, label propagation.

    python -m benchmarks.het.graph_quality --data FOLDER --work CELLS --out benchmarks/results
    python -m benchmarks.het.graph_quality --data FOLDER --work CELLS --only acl/outsize/0

Nodes have ids only. Every cell (graph, method, seed) is saved in `--work` when it is done, so a
second call goes on. Settings were chosen on the validation split; the split is the same for all.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import outsize
from benchmarks.het.plain_graphsage import PlainSettings, train_plain
from benchmarks.het.real_graphs import GRAPHS, graph_section
from benchmarks.runner import benchmark_parser
from outsize.bench import Benchmark, measure
from outsize.data import GraphData, GraphDataConfig
from outsize.files import write_text_atomically
from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode

METHODS = ("outsize", "torch", "label-propagation")
_SEEDS = (0, 1, 2)
_MOST_STEPS = 10
_SMALL = PlainSettings(batch_size=128, epochs=30)
_LARGE = PlainSettings()
SETTINGS: Mapping[str, PlainSettings] = {
    "cora": _SMALL,
    "citeseer": _SMALL,
    "tolokers": _LARGE,
    "musae_facebook": _LARGE,
    "musae_github": _LARGE,
    "debian_trixie": _LARGE,
    "acl": replace(_LARGE, dim=128, hidden=128, fan_out=(-1, 20), rate=0.003, epochs=4),
}


def run_file(name: str, folder: str, settings: PlainSettings, seed: int) -> dict[str, Any]:
    """The run of Outsize that the settings ask for."""
    return {
        "seed": seed,
        "data": graph_section(name, folder),
        "model": {
            "kind": "graphsage",
            "hidden": settings.hidden,
            "layers": len(settings.fan_out),
            "dropout": settings.dropout,
            "seed_dropout": settings.seed_dropout,
        },
        "graph": {"fan_out": list(settings.fan_out)},
        "embeddings": {
            "dim": settings.dim,
            "optimizer": {"kind": "full-adagrad", "learning_rate": settings.row_rate},
        },
        "optimizer": {"learning_rate": settings.rate},
        "train": {
            "batch_size": settings.batch_size,
            "epochs": settings.epochs,
            "early_stop": False,
            "device": "cpu",
        },
    }


def propagate_labels(data: GraphData) -> dict[str, float]:
    """Label propagation with the number of steps that is the best on validation."""
    most = _MOST_STEPS * (1 if len(data.graph.nodes) == 1 else 2)
    found = propagations(data, most)
    best = max(range(most), key=lambda number: found[number]["validation"])
    return {**found[best], "steps": best + 1}


def propagations(data: GraphData, num_steps: int) -> list[dict[str, float]]:
    """The accuracies of label propagation after each of its steps, by split.

    Classes of training nodes spread over edges: a step replaces the class shares of a node by the
    mean of its neighbours', of all relations, after it has reset the training nodes.
    """
    labels = data.labels
    assert labels is not None
    kind, classes, train = labels.node_type, labels.classes, data.labelled["train"]
    num_classes = len(labels.class_names)
    shares = {
        name: np.zeros((nodes.num_nodes, num_classes)) for name, nodes in data.graph.nodes.items()
    }
    prior = np.bincount(classes[train], minlength=num_classes) / len(train)
    found = []
    for _ in range(num_steps):
        shares[kind][train] = np.eye(num_classes)[classes[train]]
        shares = _spread(data, shares)
        predicted = (shares[kind] + 1e-9 * prior).argmax(axis=1)
        found.append(
            {
                str(split): float((predicted[nodes] == classes[nodes]).mean())
                for split, nodes in data.labelled.items()
            }
        )
    return found


def _spread(data: GraphData, shares: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    found = {name: np.zeros_like(values) for name, values in shares.items()}
    counts = {name: np.zeros(len(values)) for name, values in shares.items()}
    for relation in data.graph.relations.values():
        degrees = np.diff(relation.starts)
        targets = np.repeat(np.arange(len(degrees)), degrees)
        for column in range(found[relation.target].shape[1]):
            given = shares[relation.source][relation.sources, column]
            found[relation.target][:, column] += np.bincount(targets, given, len(degrees))
        counts[relation.target] += degrees
    return {name: values / counts[name].clip(1)[:, None] for name, values in found.items()}


def run_cell(
    name: str, method: str, seed: int, folder: str, settings: PlainSettings
) -> dict[str, Any]:
    """The accuracies of one cell, with its time."""
    started = time.perf_counter()
    config = decode(RunConfig, run_file(name, folder, settings, seed), "benchmark")
    if method == "outsize":
        result = outsize.train(config, quiet=True)
        best = {"validation": result.best["accuracy"], "test": result.test["accuracy"]}
    else:
        assert isinstance(config.data, GraphDataConfig)
        data = config.data.build()
        plain = method == "torch"
        best = dict(train_plain(data, settings, seed) if plain else propagate_labels(data))
    elapsed_s = round(time.perf_counter() - started, 1)
    return {"graph": name, "method": method, "seed": seed, "settings": asdict(settings),
            "elapsed_s": elapsed_s, **best}  # fmt: skip


def cells_of(only: Sequence[str]) -> list[tuple[str, str, int]]:
    """The cells whose graph/method/seed fits one of the patterns; all without patterns."""
    cells = [
        (name, method, seed)
        for name in GRAPHS
        for method in METHODS
        for seed in (_SEEDS if method != "label-propagation" else _SEEDS[:1])
    ]
    wanted = [pattern if pattern.count("/") else f"{pattern}/*" for pattern in only]
    return [
        cell
        for cell in cells
        if not wanted
        or any(fnmatch.fnmatch("/".join(map(str, cell)), f"{pattern}*") for pattern in wanted)
    ]


def table(results: dict[str, Any]) -> str:
    """The results as Markdown: mean and range of the test accuracy over seeds."""
    by_cell: dict[tuple[str, str], list[float]] = {}
    for row in results["rows"]:
        by_cell.setdefault((row["graph"], row["method"]), []).append(row["test"])
    lines = [
        "Nodes have ids only. Test accuracy at the best validation in %, mean over seeds (least to "
        "most); the split is the same for all.\n",
        f"| graph | {' | '.join(METHODS)} | Outsize − torch | Outsize − propagation |",
        "|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(graph for graph, _ in by_cell):
        values = [by_cell.get((name, method), []) for method in METHODS]
        means = [100 * statistics.mean(found) if found else None for found in values]
        shown = [
            "" if mean is None else f"{mean:.2f} ({100 * min(found):.2f}–{100 * max(found):.2f})"
            for mean, found in zip(means, values, strict=True)
        ]
        gains = [
            "" if means[0] is None or other is None else f"{means[0] - other:+.2f}"
            for other in means[1:]
        ]
        lines.append(f"| {' | '.join([name, *shown, *gains])} |")
    return "\n".join(lines) + "\n"


def compare(say: Callable[[str], None], given: argparse.Namespace) -> dict[str, Any]:
    """Run the missing cells; returns all that are there."""
    given.work.mkdir(parents=True, exist_ok=True)
    for cell in cells_of(given.only):
        path = _saved(given.work, cell)
        if not path.exists():
            settings = SETTINGS[cell[0]]
            if given.epochs is not None:
                settings = replace(settings, epochs=given.epochs)
            found = run_cell(*cell, given.data, settings)
            write_text_atomically(path, json.dumps(found, indent=1) + "\n")
            told = "/".join(map(str, cell))
            say(f"{told} test {found['test']:.4f}  {found['elapsed_s']} s")
    paths = [_saved(given.work, cell) for cell in cells_of(())]
    return {"rows": [json.loads(path.read_text()) for path in paths if path.exists()]}


def _saved(work: Path, cell: tuple[str, str, int]) -> Path:
    return work / f"{'-'.join(map(str, cell))}.json"


def _parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = benchmark_parser(BENCHMARK, has_quick=False)
    parser.add_argument("--data", required=True, help="the folder of the graphs")
    parser.add_argument("--work", type=Path, required=True, help="folder that keeps finished cells")
    parser.add_argument("--only", action="append", default=[], metavar="GRAPH[/METHOD[/SEED]]")
    parser.add_argument("--epochs", type=int, help="fewer epochs, to try the command")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Run the comparison as a command."""
    given = _parsed(words)
    measure(replace(BENCHMARK, run=lambda quick, say: compare(say, given)), given.out)


BENCHMARK = Benchmark(
    "graph-quality",
    "python -m benchmarks.het.graph_quality",
    "node classification on real graphs beside plain torch and label propagation",
    lambda quick, say: compare(say, _parsed(None)),
    table,
)

if __name__ == "__main__":
    main()
