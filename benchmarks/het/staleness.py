"""HET's comparison: bytes, AUC and time of training with a cache of bounded staleness.

Every cell is a whole run of `outsize train` by several ranks over gloo, on a synthetic log of a
given skew. Bytes are those sent from one rank to another, summed over ranks. AUC is measured at the
end of training on the test split, which is the same for all cells. If there are cores for several
cells, they run in parallel, with one core per rank.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.runner import run_command
from outsize.bench import Benchmark
from outsize.data import SyntheticConfig
from outsize.models import DeepFMConfig, WideDeepConfig
from outsize.training.config import CheckpointConfig, OptimizerConfig, RunConfig, TrainConfig
from outsize.training.row_counts import sent_bytes
from outsize.training.run_folder import RunFolder
from outsize.training.store_config import CacheConfig, RowOptimizerConfig, StoreConfig
from outsize.training.strict_toml import encode, to_toml

ABOUT = "bytes, AUC and time of training with bounded staleness, against synchronous training"
ZIPF = 1.05
CRITEO = 1.22  # 1% of a million rows get 92% of the accesses, as in Criteo
_NUM_FEATURES = 26
_CACHE_SHARE = 0.1


@dataclass(frozen=True)
class Mode:
    """How rows are stored and sent.

    Attributes:
        store: "sharded", or "served" for asynchronous training.
        read: Read bound of the cache (s_r); `None` for no cache.
        write: Write bound of the cache (s_w); by default the read bound.
        wire: Format of rows and gradients in messages.
    """

    store: Literal["sharded", "served"] = "sharded"
    read: float | None = None
    write: float | None = None
    wire: Literal["float32", "bfloat16", "int8"] = "float32"


MODES: dict[str, Mode] = {
    "synchronous": Mode(),
    "s = 0": Mode(read=0),
    "s = 10": Mode(read=10),
    "s = 100": Mode(read=100),
    "s = inf": Mode(read=math.inf),
    "read 100, write 10": Mode(read=100, write=10),
    "read 100, write 10, bfloat16": Mode(read=100, write=10, wire="bfloat16"),
    "read 100, write 10, int8": Mode(read=100, write=10, wire="int8"),
    "s = 10, int8": Mode(read=10, wire="int8"),
    "s = 100, int8": Mode(read=100, wire="int8"),
    "synchronous, int8": Mode(wire="int8"),
    "asynchronous": Mode(store="served"),
}
_COMPARED = tuple(name for name in MODES if name not in ("s = 100, int8", "synchronous, int8"))


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Train with every mode at two skews."""
    sizes: dict[str, Any] = {
        "num_ranks": 2 if quick else default_ranks(),
        "batch_size": 16 if quick else 128,
        "steps": 12 if quick else 800,
        "rows_per_feature": 200 if quick else 38_462,
        "num_test": 500 if quick else 100_000,
    }
    cells = [{"mode": mode, "skew": skew, **sizes} for skew in (ZIPF, CRITEO) for mode in _COMPARED]
    return {"sizes": sizes, "rows": train_cells(cells, say)}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    sizes = results["sizes"]
    parts = [
        f"{describe(sizes)}, WDL in HET's shape, rows of 128 numbers, {sizes['steps']:,} steps. "
        "Bytes over the whole run, the cold cache and the last flush included; ms per step: the "
        "median over the second half. Goal: 88% fewer bytes than synchronous float32 at an AUC "
        "within 0.0005.\n"
    ]
    for skew in dict.fromkeys(row["skew"] for row in results["rows"]):
        parts.append(_mode_table([row for row in results["rows"] if row["skew"] == skew]))
    return "\n".join(parts)


def default_ranks() -> int:
    """Four ranks, or eight if each can have two cores."""
    return 8 if (os.cpu_count() or 1) >= 16 else 4


def describe(sizes: Mapping[str, Any]) -> str:
    """The sizes that all cells share, in words."""
    return (
        f"{sizes['num_ranks']} ranks on one machine, batch {sizes['batch_size']} each, "
        f"{_NUM_FEATURES} features of {sizes['rows_per_feature']:,} rows, a cache of "
        f"{_CACHE_SHARE:.0%} of the rows on each rank"
    )


def train_cells(
    cells: Sequence[Mapping[str, Any]], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Train cells, in parallel if each rank can have its own core; results in the order of cells.

    Args:
        cells: Each with a "mode" and the arguments of `run_text`.
        say: Shows progress.
    """
    lanes = max(1, (os.cpu_count() or 1) // max(cell["num_ranks"] for cell in cells))
    with ThreadPoolExecutor(lanes) as pool:
        return list(pool.map(lambda cell: {**cell, **_train(say=say, **cell)}, cells))


def run_text(
    mode: Mode,
    *,
    num_ranks: int,
    batch_size: int,
    steps: int,
    skew: float,
    rows_per_feature: int = 38_462,
    dim: int = 128,
    epochs: int = 1,
    num_test: int = 2_000,
    model: str = "WDL",
    seed: int = 0,
    log_every: int | None = None,
) -> str:
    """The run file of a cell.

    Args:
        mode: How rows are stored and sent.
        num_ranks: Number of ranks.
        batch_size: Examples per rank and step.
        steps: Steps per epoch.
        skew: Zipf exponent of the ids.
        rows_per_feature: Rows of each of the 26 tables.
        dim: Numbers per row.
        epochs: Passes over the data.
        num_test: Examples of the test split.
        model: "WDL" or "DFM", in HET's shape.
        seed: Seed of rows and weights.
        log_every: Steps per line of metrics; by default 25, or fewer for four lines in a short run.
    """
    cache = CacheConfig()
    if mode.read is not None:
        write = mode.read if mode.write is None else mode.write
        cache = CacheConfig(_CACHE_SHARE, float(mode.read), float(write))
    is_wide = model == "WDL"
    config = RunConfig(
        seed=seed,
        data=SyntheticConfig(
            num_train=steps * batch_size * num_ranks,
            num_validation=max(500, num_test // 4),
            num_test=num_test,
            vocabulary=(rows_per_feature,) * _NUM_FEATURES,
            skew=skew,
        ),
        model=WideDeepConfig.het() if is_wide else DeepFMConfig.het(),
        embeddings=StoreConfig(
            dim=dim if is_wide else dim + 1,  # DeepFM's rows also hold the weight of the id
            store=mode.store,
            wire=mode.wire,
            cache=cache,
            init_std=None if is_wide else 0.01,
            # SGD, as in HET; of learning rates in powers of four, the best after four epochs.
            optimizer=RowOptimizerConfig("sgd", 8.0 if is_wide else 0.5),
        ),
        optimizer=OptimizerConfig("sgd", 0.1),
        train=TrainConfig(
            batch_size=batch_size,
            eval_batch_size=2048,
            epochs=epochs,
            early_stop=False,
            log_every=log_every or min(25, max(1, steps * epochs // 4)),
            device="cpu",
        ),
        checkpoint=CheckpointConfig(every=1 << 40),
    )
    return to_toml(encode(config))


def steady_step_s(lines: Sequence[Mapping[str, Any]], global_batch: int) -> float:
    """Seconds per step: the median over the second half of the training lines."""
    speeds = [line["examples_per_s"] for line in lines if line["split"] == "train"]
    return float(statistics.median(global_batch / speed for speed in speeds[len(speeds) // 2 :]))


def _train(mode: str, say: Callable[[str], None], **settings: Any) -> dict[str, Any]:
    """Train one cell in its own processes."""
    with tempfile.TemporaryDirectory() as folder:
        run_file, out = Path(folder) / "run.toml", Path(folder) / "run"
        run_file.write_text(run_text(MODES[mode], **settings))
        words = [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            f"--nproc-per-node={settings['num_ranks']}",
            "-m", "outsize", "train", str(run_file), "--out", str(out), "--json",
        ]  # fmt: skip
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, env=one_thread, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{mode} ({settings}) failed:\n{done.stderr[-3000:]}")
        summary = json.loads(done.stdout)
        lines = RunFolder(out).metrics()
    train = [line for line in lines if line["split"] == "train"]
    step_s = steady_step_s(lines, settings["num_ranks"] * settings["batch_size"])
    cell = {
        "validation_auc": [line["auc"] for line in lines if line["split"] == "validation"],
        "test_auc": summary["test"]["auc"],
        "bayes_auc": summary["test"].get("bayes_auc"),
        "sent_bytes": sent_bytes(lines),
        "hit_rate": train[-1].get("hit_rate"),
        "evictions": sum(line.get("evictions", 0) for line in train),
        "largest_lag": max((line.get("largest_lag") or 0 for line in train), default=0),
        "step_ms": step_s * 1e3,
        "elapsed_s": summary["elapsed_s"],
    }
    total = sum(cell["sent_bytes"].values())
    told = ", ".join(
        f"{key} {settings[key]}" for key in ("skew", "dim", "model") if key in settings
    )
    say(
        f"{mode} ({told}): {total / 1e6:,.1f} MB, AUC {cell['test_auc']:.5f}, "
        f"{step_s * 1e3:.1f} ms per step"
    )
    return cell


def _mode_table(rows: Sequence[Mapping[str, Any]]) -> str:
    base = next(row for row in rows if row["mode"] == "synchronous")
    everything = sum(base["sent_bytes"].values())
    lines = [
        f"## Modes, Zipf {base['skew']}\n",
        "| mode | MB sent | fewer bytes | ids | clocks | rows | gradients | hit rate | largest lag "
        "| test AUC | against synchronous | ms per step |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        sent = row["sent_bytes"]
        total = sum(sent.values())
        kinds = " | ".join(
            f"{sent.get(k, 0) / 1e6:,.1f}" for k in ("ids", "clocks", "rows", "gradients")
        )
        hits = "" if row["hit_rate"] is None else f"{row['hit_rate']:.3f}"
        lines.append(
            f"| {row['mode']} | {total / 1e6:,.1f} | {1 - total / everything:.1%} | {kinds} "
            f"| {hits} | {row['largest_lag'] or ''} | {row['test_auc']:.5f} "
            f"| {row['test_auc'] - base['test_auc']:+.5f} | {row['step_ms']:.1f} |"
        )
    return "\n".join(lines) + f"\n\nBest possible AUC (Bayes): {base['bayes_auc']:.5f}.\n"


BENCHMARK = Benchmark("staleness", "python -m benchmarks.het.staleness", ABOUT, run, table)

if __name__ == "__main__":
    run_command(BENCHMARK)
