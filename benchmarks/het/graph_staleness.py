"""HET's comparison on graphs: accuracy by step, time and bytes with a cache of bounded staleness.

    python -m benchmarks.het.graph_staleness [--data FOLDER] [--work CELLS]
                                             [--out benchmarks/results]

GraphSAGE learns the classes of nodes of a synthetic graph with power-law degrees from a row per
node. Synchronous training, and caches with several bounds, by 2 and 4 ranks; then the hit rate of
caches by size and eviction policy. Differences in accuracy are taken seed by seed, and shown with
their range. `--data` adds real graphs, with the settings of `graph_quality`. `--work` keeps
finished cells, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.het.graph_quality import SETTINGS, run_file
from benchmarks.het.staleness_runs import MODES, cache_of, launch, steady_step_s, train_cells
from benchmarks.runner import benchmark_parser
from outsize.bench import Benchmark, measure
from outsize.data import SyntheticGraphConfig
from outsize.models import GraphSAGEConfig
from outsize.training.config import CheckpointConfig, OptimizerConfig, RunConfig, TrainConfig
from outsize.training.graph_config import GraphConfig
from outsize.training.row_counts import sent_bytes
from outsize.training.store_config import RowOptimizerConfig, StoreConfig
from outsize.training.strict_toml import decode

ABOUT = "accuracy, bytes and hit rate of GraphSAGE with bounded staleness"
_MODES = ("synchronous", "s = 0", "s = 10", "s = 100", "s = inf")
_ON_FOUR = ("synchronous", "s = 10")
_REAL = ("musae_facebook", "debian_trixie", "acl")
_REAL_ONCE = ("s = 100", "s = inf")  # with one seed, on two ranks
_SHARES = (0.05, 0.1, 0.2, 0.4)
_POLICIES = ("lru", "lfu", "fading-lfu")
_SHARE = 0.1
_POLICY = "fading-lfu"
_NEVER = 1 << 40
_MODE_HEAD = (
    "| ranks | mode | MB sent | fewer bytes | hit rate | largest lag | test accuracy | against "
    "synchronous | ms per step |"
)
_MODE_RULE = "|--:|---|--:|--:|--:|--:|--:|--:|--:|"


def cells_of(sizes: Mapping[str, Any], seeds: int, *, quick: bool) -> list[dict[str, Any]]:
    """The cells of the comparison, every seed of a mode next to each other.

    Args:
        sizes: Arguments of `graph_run` that all cells share.
        seeds: Number of seeds.
        quick: Only synchronous training and one cache on two ranks, and one more cache.
    """
    settings = [{"mode": mode, "num_ranks": 2} for mode in (_ON_FOUR if quick else _MODES)]
    if not quick:
        settings += [{"mode": mode, "num_ranks": 4} for mode in _ON_FOUR]
    cells = [{**cell, **sizes, "seed": seed} for cell in settings for seed in range(seeds)]
    caches = [(share, policy) for share in _SHARES for policy in _POLICIES]
    return cells + [
        {"mode": "s = 10", "num_ranks": 2, **sizes, "seed": 0, "share": share, "policy": policy}
        for share, policy in (caches[:1] if quick else caches)
    ]


def real_cells(seeds: int) -> list[dict[str, Any]]:
    """The cells of real graphs."""
    chosen = [(mode, ranks, seed) for ranks in (2, 4) for mode in _ON_FOUR for seed in range(seeds)]
    chosen += [(mode, 2, 0) for mode in _REAL_ONCE]
    return [
        {"graph": graph, "mode": mode, "num_ranks": ranks, "seed": seed}
        for graph in _REAL
        for mode, ranks, seed in chosen
    ]


def real_run(mode: str, *, graph: str, folder: str, num_ranks: int, seed: int) -> RunConfig:
    """The run of a cell on a real graph: that of `graph_quality`, by several ranks."""
    settings, chosen = SETTINGS[graph], MODES[mode]
    config = decode(RunConfig, run_file(graph, folder, settings, seed), "benchmark")
    assert isinstance(config.embeddings, StoreConfig)
    embeddings = replace(
        config.embeddings,
        store=chosen.store,
        wire=chosen.wire,
        cache=cache_of(chosen, _SHARE, eviction=_POLICY),
    )
    return replace(
        config,
        embeddings=embeddings,
        train=replace(config.train, batch_size=settings.batch_size // num_ranks, log_every=10),
        checkpoint=CheckpointConfig(every=_NEVER, best=False),
    )


def graph_run(
    mode: str,
    *,
    num_ranks: int,
    batch_size: int,
    epochs: int,
    num_nodes: int,
    dim: int,
    seed: int,
    share: float = _SHARE,
    policy: str = _POLICY,
) -> RunConfig:
    """The run of a cell.

    Args:
        mode: A key of `MODES`.
        num_ranks: Number of ranks.
        batch_size: Seed nodes per step, over all ranks.
        epochs: Passes over the training nodes.
        num_nodes: Nodes of the graph.
        dim: Numbers per row.
        seed: Seed of the graph, of rows and of weights.
        share: Share of the rows that the cache of a rank holds.
        policy: Its eviction policy.
    """
    chosen = MODES[mode]
    return RunConfig(
        seed=seed,
        data=SyntheticGraphConfig(num_nodes=num_nodes, mean_degree=10.0, homophily=0.55, seed=seed),
        model=GraphSAGEConfig(hidden=64),
        graph=GraphConfig(fan_out=(10, 10)),
        embeddings=StoreConfig(
            dim=dim,
            store=chosen.store,
            wire=chosen.wire,
            cache=cache_of(chosen, share, eviction=policy),
            optimizer=RowOptimizerConfig("adagrad", 0.1),
        ),
        optimizer=OptimizerConfig("adagrad", 0.02),
        train=TrainConfig(
            batch_size=batch_size // num_ranks,
            epochs=epochs,
            early_stop=False,
            log_every=min(10, max(1, num_nodes * epochs // batch_size // 4)),
            device="cpu",
        ),
        checkpoint=CheckpointConfig(every=_NEVER),
    )


def train_cell(
    mode: str, say: Callable[[str], None], folder: str = "", **settings: Any
) -> dict[str, Any]:
    """Train one cell in its own processes; the files of real graphs are in `folder`."""
    if "graph" in settings:
        config = real_run(mode, folder=folder, **settings)
    else:
        config = graph_run(mode, **settings)
    batch_size = config.train.batch_size * settings["num_ranks"]
    summary, lines = launch(config, settings["num_ranks"], f"{mode} ({settings})")
    train = [line for line in lines if line["split"] == "train"]
    sent = sent_bytes(lines)
    cell = {
        "run_steps": summary["steps"],
        "curve": read_curve(lines, batch_size),
        "test_accuracy": summary["test"]["accuracy"],
        "bayes_accuracy": summary["test"].get("bayes_accuracy"),
        "sent_bytes": sent,
        "hit_rate": train[-1].get("hit_rate"),
        "largest_lag": max((line.get("largest_lag") or 0 for line in train), default=0),
        "step_ms": steady_step_s(lines, batch_size) * 1e3,
        "elapsed_s": summary["elapsed_s"],
    }
    named = ("graph", "num_ranks", "seed", "share", "policy")
    told = ", ".join(f"{key} {settings[key]}" for key in named if key in settings)
    say(
        f"{mode} ({told}): {sum(sent.values()) / 1e6:,.1f} MB, accuracy "
        f"{cell['test_accuracy']:.4f}, {cell['step_ms']:.1f} ms per step"
    )
    return cell


def read_curve(lines: Sequence[Mapping[str, Any]], batch_size: int) -> list[dict[str, float]]:
    """Validation accuracy by steps, bytes and seconds of training."""
    curve, step, seconds = [], 0, 0.0
    for number, line in enumerate(lines):
        if line["split"] == "train":
            seconds += (line["step"] - step) * batch_size / line["examples_per_s"]
            step = line["step"]
        elif line["split"] == "validation":
            sent = sum(sent_bytes(lines[:number]).values())
            point = {"step": line["step"], "bytes": sent, "seconds": seconds}
            curve.append({**point, "accuracy": line["accuracy"]})
    return curve


def compare(quick: bool, say: Callable[[str], None], given: argparse.Namespace) -> dict[str, Any]:
    """Train every cell, as the command line says."""
    sizes: dict[str, Any] = {
        "batch_size": 64 if quick else 256,
        "epochs": 1 if quick else 5,
        "num_nodes": 500 if quick else 10_000,
        "dim": 8 if quick else 64,
    }
    cells = cells_of(sizes, 1 if quick else given.seeds, quick=quick)
    if given.data is not None:
        cells += real_cells(given.seeds)
    train = partial(train_cell, folder=str(given.data or ""))
    return {"sizes": sizes, "rows": train_cells(cells, say, given.work, given.jobs, train)}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    sizes = results["sizes"]
    rows = [row for row in results["rows"] if "graph" not in row]
    modes = [row for row in rows if "policy" not in row]
    seeds = len({row["seed"] for row in modes})
    steps = modes[0]["run_steps"]
    parts = [
        f"A synthetic graph of {sizes['num_nodes']:,} nodes, GraphSAGE with two layers of 64 over "
        f"rows of {sizes['dim']} numbers, fan-out 10 × 10, batches of {sizes['batch_size']} nodes "
        f"over all ranks, {steps:,} steps; a cache holds {_SHARE:.0%} of the rows on each rank. "
        f"Mean of {seeds} seeds (range); differences in accuracy are taken seed by seed. Bytes "
        "are sent by all ranks over the whole run, the cold cache and the last flush included. "
        f"{_best(modes)}Times are those of the first seed.\n",
        _MODE_HEAD,
        _MODE_RULE,
    ]
    parts += _mode_lines(modes)
    parts.append(
        "\nValidation accuracy after each epoch, and MB sent up to the last line of the log before "
        "it, at most 10 steps earlier, by 2 ranks:\n"
    )
    parts += _curve_lines([row for row in modes if row["num_ranks"] == 2])
    parts.append(
        "\nHit rate and MB sent by size and policy of the cache, s = 10, 2 ranks, one seed:\n"
    )
    parts += _cache_lines([row for row in rows if "policy" in row])
    real = [row for row in results["rows"] if "graph" in row]
    for graph in dict.fromkeys(row["graph"] for row in real):
        same = [row for row in real if row["graph"] == graph]
        parts.append(f"\n{_about_graph(graph, same)}\n")
        parts += [_MODE_HEAD, _MODE_RULE, *_mode_lines(same)]
    return "\n".join(parts) + "\n"


def _about_graph(graph: str, rows: Sequence[Mapping[str, Any]]) -> str:
    settings = SETTINGS[graph]
    seeds = len({row["seed"] for row in rows})
    return (
        f"`{graph}`, a real graph: two layers of {settings.hidden} over rows of {settings.dim}, "
        f"fan-out {' × '.join(map(str, settings.fan_out))}, batches of {settings.batch_size} over "
        f"all ranks, {rows[0]['run_steps']:,} steps, {seeds} seeds (one for {_REAL_ONCE[0]} and "
        f"{_REAL_ONCE[1]}); accuracy is that of the best validation:"
    )


def _best(rows: Sequence[Mapping[str, Any]]) -> str:
    known = [row["bayes_accuracy"] for row in rows if row["bayes_accuracy"] is not None]
    if not known:
        return ""
    return f"The best possible test accuracy is {statistics.mean(known):.4f}. "


def _mode_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    base = {(r["num_ranks"], r["seed"]): r for r in rows if r["mode"] == "synchronous"}
    for ranks, mode in dict.fromkeys((row["num_ranks"], row["mode"]) for row in rows):
        same = [row for row in rows if (row["num_ranks"], row["mode"]) == (ranks, mode)]
        first = [base[ranks, row["seed"]] for row in same]
        fewer = [1 - _sent(row) / _sent(b) for row, b in zip(same, first, strict=True)]
        gained = [
            row["test_accuracy"] - b["test_accuracy"] for row, b in zip(same, first, strict=True)
        ]
        hits = [row["hit_rate"] for row in same if row["hit_rate"]]
        cells = [
            str(ranks),
            mode,
            f"{statistics.mean(_sent(row) for row in same) / 1e6:,.1f}",
            f"{statistics.mean(fewer):.1%} ({min(fewer):.1%} to {max(fewer):.1%})",
            f"{statistics.mean(hits):.3f}" if hits else "",
            f"{max(row['largest_lag'] for row in same) or ''}",
            f"{statistics.mean(row['test_accuracy'] for row in same):.4f}",
            f"{statistics.mean(gained):+.4f} ({min(gained):+.4f} to {max(gained):+.4f})",
            f"{min(same, key=lambda row: row['seed'])['step_ms']:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _curve_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    steps = [point["step"] for point in rows[0]["curve"]]
    lines = [
        f"| mode | {' | '.join(f'step {step:,}' for step in steps)} |",
        "|---|" + "--:|" * len(steps),
    ]
    for mode in dict.fromkeys(row["mode"] for row in rows):
        curves = [row["curve"] for row in rows if row["mode"] == mode]
        cells = [
            f"{statistics.mean(point['accuracy'] for point in points):.4f} "
            f"({statistics.mean(point['bytes'] for point in points) / 1e6:,.0f} MB)"
            for points in zip(*curves, strict=True)
        ]
        lines.append(f"| {mode} | {' | '.join(cells)} |")
    return lines


def _cache_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    lines = [f"| share of rows | {' | '.join(policies)} |", "|--:|" + "--:|" * len(policies)]
    for share in dict.fromkeys(row["share"] for row in rows):
        found = {row["policy"]: row for row in rows if row["share"] == share}
        cells = [f"{found[p]['hit_rate']:.3f} ({_sent(found[p]) / 1e6:,.1f} MB)" for p in policies]
        lines.append(f"| {share:.0%} | {' | '.join(cells)} |")
    return lines


def _sent(row: Mapping[str, Any]) -> float:
    return float(sum(row["sent_bytes"].values()))


def _parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = benchmark_parser(BENCHMARK)
    parser.add_argument("--data", type=Path, help="folder of real graphs")
    parser.add_argument("--work", type=Path, help="folder that keeps finished cells")
    parser.add_argument("--jobs", type=int, help="cells at a time")
    parser.add_argument("--seeds", type=int, default=3, help="seeds per mode")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Run the comparison as a command."""
    given = _parsed(words)
    chosen = replace(BENCHMARK, run=lambda quick, say: compare(quick, say, given))
    measure(chosen, given.out, quick=given.quick)


BENCHMARK = Benchmark(
    "graph-staleness",
    "python -m benchmarks.het.graph_staleness",
    ABOUT,
    lambda quick, say: compare(quick, say, _parsed([])),
    table,
)

if __name__ == "__main__":
    main()
