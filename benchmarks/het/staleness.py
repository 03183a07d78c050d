"""HET's comparison: bytes, AUC and time of training with a cache of bounded staleness.

    python -m benchmarks.het.staleness [--data DATA] [--work CELLS] [--out benchmarks/results]

Synchronous training with every wire, and caches with several bounds, on synthetic logs of two
skews; on real data sets too if `--data` names the folder of the files that `examples/real/*.toml`
name. Three seeds each: differences in AUC are taken seed by seed, and shown with their range.
Checkpoints flush the caches, so the recommended bounds are measured with and without them. `--work`
keeps finished cells, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.het.staleness_runs import (
    CRITEO,
    REAL_DATA,
    ZIPF,
    default_ranks,
    describe,
    train_cells,
)
from benchmarks.runner import benchmark_parser
from outsize.bench import Benchmark, measure

ABOUT = "bytes, AUC and time of training with bounded staleness, against synchronous training"
RECOMMENDED = ("s = 10, int8", "read 100, write 10, int8")
_WIRES = ("synchronous", "synchronous, bfloat16", "synchronous, int8")
_BOUNDED = (*_WIRES, "s = 10", "read 100, write 10", *RECOMMENDED)
_REAL = (*_WIRES, "s = 2, int8", *RECOMMENDED)
_ALL = (*_BOUNDED, "s = inf")
_CHECKPOINT_EVERY = 100


def cells_of(
    sizes: Mapping[str, Any], seeds: int, data: Path | None, *, quick: bool
) -> list[dict[str, Any]]:
    """The cells of the comparison, every seed of a mode next to each other.

    Args:
        sizes: Arguments of `synthetic_run` that all cells on synthetic logs share.
        seeds: Number of seeds.
        data: Folder of the real data sets, if they are to be used.
        quick: Only one skew, and the recommended modes besides synchronous training.
    """
    modes = (
        {ZIPF: (_WIRES[0], *RECOMMENDED)}
        if quick
        else {ZIPF: _ALL, CRITEO: (*_WIRES, *RECOMMENDED)}
    )
    settings: list[dict[str, Any]] = []
    every = max(2, sizes["steps"] // 8) if quick else _CHECKPOINT_EVERY
    for skew, shown in modes.items():
        settings += [{"mode": mode, "skew": skew, **sizes} for mode in shown]
        if skew == ZIPF:
            settings += [
                {"mode": mode, "skew": skew, **sizes, "checkpoint_every": every}
                for mode in RECOMMENDED
            ]
    for data_set in REAL_DATA if data is not None else ():
        shared = {"data_set": data_set, "folder": str(data), "batch_size": 512}
        shared["num_ranks"] = sizes["num_ranks"]
        settings += [{"mode": mode, **shared} for mode in _REAL]
        settings += [{"mode": m, **shared, "checkpoint_every": every} for m in RECOMMENDED]
    return [{**cell, "seed": seed} for cell in settings for seed in range(seeds)]


def compare(quick: bool, say: Callable[[str], None], given: argparse.Namespace) -> dict[str, Any]:
    """Train every cell, as the command line says."""
    sizes: dict[str, Any] = {
        "num_ranks": 2 if quick else min(4, default_ranks()),
        "batch_size": 16 if quick else 128,
        "steps": 12 if quick else 800,
        "rows_per_feature": 200 if quick else 38_462,
        "num_test": 500 if quick else 100_000,
    }
    cells = cells_of(sizes, 2 if quick else given.seeds, given.data, quick=quick)
    rows = train_cells(cells, say, given.work, given.jobs)
    for row in rows:
        row.pop("folder", None)
    return {"sizes": sizes, "rows": rows}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    sizes, rows = results["sizes"], results["rows"]
    seeds = len({row["seed"] for row in rows})
    parts = [
        f"{describe(sizes)}, WDL in HET's shape, rows of 128 numbers, {sizes['steps']:,} steps; on "
        "real data one epoch of the example's run with batch 512 per rank and rows of 64 numbers. "
        f"Mean of {seeds} seeds (range). Differences in AUC are taken seed by seed. Bytes over the "
        "whole run, the cold cache and the last flush included; ms per step: the median over the "
        "second half. A checkpoint flushes every cache.\n"
    ]
    for name in dict.fromkeys(_data_of(row) for row in rows):
        parts.append(_mode_table(name, [row for row in rows if _data_of(row) == name]))
    return "\n".join(parts)


def _data_of(row: Mapping[str, Any]) -> str:
    return row.get("data_set") or f"Zipf {row['skew']}"


def _mode_table(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    base = {row["seed"]: row for row in rows if row["mode"] == "synchronous"}
    lines = [
        f"## {name}: {next(iter(base.values()))['run_steps']:,} steps\n",
        "| mode | checkpoint every | MB sent | fewer bytes | hit rate | largest lag | test AUC "
        "| against synchronous | ms per step |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for mode, every in dict.fromkeys((row["mode"], row.get("checkpoint_every")) for row in rows):
        same = [r for r in rows if (r["mode"], r.get("checkpoint_every")) == (mode, every)]
        first = [base[row["seed"]] for row in same]
        sent = [_total(row) for row in same]
        fewer = [1 - t / _total(b) for t, b in zip(sent, first, strict=True)]
        lost = [r["test_auc"] - b["test_auc"] for r, b in zip(same, first, strict=True)]
        hits = [row["hit_rate"] for row in same if row["hit_rate"]]
        cells = [
            mode,
            "" if every is None else f"{every:,}",
            f"{statistics.mean(sent) / 1e6:,.1f}",
            f"{statistics.mean(fewer):.1%} ({min(fewer):.1%} to {max(fewer):.1%})",
            f"{statistics.mean(hits):.3f}" if hits else "",
            f"{max(row['largest_lag'] for row in same) or ''}",
            f"{statistics.mean(row['test_auc'] for row in same):.4f}",
            f"{statistics.mean(lost):+.4f} ({min(lost):+.4f} to {max(lost):+.4f})",
            f"{statistics.median(row['step_ms'] for row in same):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    best = [row["bayes_auc"] for row in base.values() if row["bayes_auc"] is not None]
    known = f"\nBest possible AUC (Bayes): {statistics.mean(best):.4f}.\n" if best else ""
    return "\n".join(lines) + "\n" + known


def _total(row: Mapping[str, Any]) -> float:
    return float(sum(row["sent_bytes"].values()))


def _parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = benchmark_parser(BENCHMARK)
    parser.add_argument("--data", type=Path, help="folder of the real data sets")
    parser.add_argument("--work", type=Path, help="folder that keeps finished cells")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, help="runs at a time; one per core and rank by default")
    return parser.parse_args(words)


BENCHMARK = Benchmark(
    "staleness",
    "python -m benchmarks.het.staleness",
    ABOUT,
    lambda quick, say: compare(quick, say, _parsed([])),
    table,
)


def main(words: Sequence[str] | None = None) -> None:
    """Run the comparison as a command."""
    given = _parsed(words)
    benchmark = replace(
        BENCHMARK,
        command=BENCHMARK.command + (" --data DATA" if given.data else ""),
        run=lambda quick, say: compare(quick, say, given),
    )
    measure(benchmark, given.out, quick=given.quick)


if __name__ == "__main__":
    main()
