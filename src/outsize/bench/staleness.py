"""HET's comparison: bytes, AUC and time of training with a cache of bounded staleness.

Every cell is a whole run of `outsize train` by ranks over gloo, on a synthetic log whose rows are
as skewed as asked. Bytes are those that leave a rank for another, all ranks together; AUC is that
of the test split, the same for all cells, at the end of training.

1. Modes: without a cache; with one at several bounds; with rounded messages; asynchronously.
2. AUC by epoch for WDL and DFM (the text's Figure 11).
3. Widths of rows (the text's Figure 9c).
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from outsize.data import SyntheticConfig
from outsize.models import DeepFMConfig, WideDeepConfig
from outsize.training.config import CheckpointConfig, OptimizerConfig, RunConfig, TrainConfig
from outsize.training.embeddings_config import CacheConfig, RowOptimizerConfig, StoreConfig
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import encode, to_toml

ABOUT = "bytes, AUC and time of training with bounded staleness, against synchronous training"
ZIPF = 1.05
CRITEO = 1.22  # 1% of a million rows take 92% of the accesses, as in Criteo
_NUM_FEATURES = 26
_CACHE_SHARE = 0.1


@dataclass(frozen=True)
class Mode:
    """How rows are kept and sent.

    Attributes:
        store: "sharded", or "served" for asynchronous training.
        staleness: Both bounds of the cache; `None` for no cache.
        wire: How rows and gradients travel.
    """

    store: Literal["sharded", "served"] = "sharded"
    staleness: float | None = None
    wire: Literal["float32", "bfloat16", "int8"] = "float32"


MODES: dict[str, Mode] = {
    "synchronous": Mode(),
    "s = 0": Mode(staleness=0),
    "s = 10": Mode(staleness=10),
    "s = 100": Mode(staleness=100),
    "s = inf": Mode(staleness=math.inf),
    "s = 100, bfloat16": Mode(staleness=100, wire="bfloat16"),
    "s = 100, int8": Mode(staleness=100, wire="int8"),
    "synchronous, int8": Mode(wire="int8"),
    "asynchronous": Mode(store="served"),
}
_CURVES = ("synchronous", "s = 10", "s = 100", "s = 100, int8", "asynchronous")
_WIDE = ("synchronous", "s = 100", "s = 100, int8")


@dataclass(frozen=True)
class Sizes:
    """How large the comparison is."""

    num_ranks: int
    rows_a_feature: int
    steps: int
    batch_size: int
    num_test: int
    seeds: tuple[int, ...]
    epochs: int
    epoch_steps: int
    dims: tuple[int, ...]
    wide_rows_a_feature: int
    wide_steps: int


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Train every cell, one after the other."""
    num_ranks = 8 if (os.cpu_count() or 1) >= 16 else 4
    sizes = (
        Sizes(2, 200, 12, 16, 500, (0,), 2, 6, (8, 16), 100, 6)
        if quick
        else Sizes(num_ranks, 38_462, 1500, 128, 200_000, (0,), 6, 400, (16, 64, 256, 1024, 4096),
                   3_846, 60)
    )  # fmt: skip
    return {
        "sizes": vars(sizes),
        "modes": _modes(sizes, say),
        "curves": _curves(sizes, say),
        "dims": _dims(sizes, say),
    }


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    sizes = results["sizes"]
    head = (
        f"{sizes['num_ranks']} ranks on one machine, batch {sizes['batch_size']} each, "
        f"{_NUM_FEATURES} features of {sizes['rows_a_feature']:,} rows of 128 numbers, WDL in "
        f"HET's shape, {sizes['steps']:,} steps, a cache of {_CACHE_SHARE:.0%} of the rows on each "
        "rank. Bytes leave a rank for another, all ranks together, over the whole run, the cold "
        "cache and the last flush included. ms: median of the steps of the second half.\n"
    )
    parts = [head]
    for skew in dict.fromkeys(row["skew"] for row in results["modes"]):
        parts.append(_mode_table([row for row in results["modes"] if row["skew"] == skew]))
    parts.append("## AUC by epoch\n\nOf the validation split after each epoch.\n")
    for model in dict.fromkeys(row["model"] for row in results["curves"]):
        parts.append(_curve_table([row for row in results["curves"] if row["model"] == model]))
    parts.append(
        f"## Width of rows\n\n{_NUM_FEATURES} features of {sizes['wide_rows_a_feature']:,} rows, "
        f"{sizes['wide_steps']} steps: what is sent a step, and how long a step takes.\n"
    )
    parts.append(_dim_table(results["dims"]))
    return "\n".join(parts)


def run_text(
    mode: Mode,
    *,
    num_ranks: int,
    batch_size: int,
    steps: int,
    skew: float,
    rows_a_feature: int = 38_462,
    dim: int = 128,
    epochs: int = 1,
    num_test: int = 2_000,
    model: str = "WDL",
    seed: int = 0,
    log_every: int = 25,
) -> str:
    """The run file of a cell."""
    cache = CacheConfig()
    if mode.staleness is not None:
        cache = CacheConfig(_CACHE_SHARE, float(mode.staleness), float(mode.staleness))
    shape = WideDeepConfig.het() if model == "WDL" else DeepFMConfig.het()
    config = RunConfig(
        seed=seed,
        data=SyntheticConfig(
            num_train=steps * batch_size * num_ranks,
            num_validation=max(500, num_test // 4),
            num_test=num_test,
            vocabulary=(rows_a_feature,) * _NUM_FEATURES,
            skew=skew,
        ),
        model=shape,
        embeddings=StoreConfig(
            dim=dim if model == "WDL" else dim + 1,  # DeepFM's rows hold the id's weight as well
            store=mode.store,
            wire=mode.wire,
            cache=cache,
            optimizer=RowOptimizerConfig("adagrad", 0.05),
        ),
        optimizer=OptimizerConfig("adagrad", 0.01),
        train=TrainConfig(
            batch_size=batch_size,
            eval_batch_size=2048,
            epochs=epochs,
            early_stop=False,
            log_every=log_every,
            device="cpu",
        ),
        checkpoint=CheckpointConfig(every=1 << 40),
    )
    return to_toml(encode(config))


def steady_step_s(lines: Sequence[Mapping[str, Any]], global_batch: int) -> float:
    """Seconds a step takes: the median over the second half of the training lines."""
    speeds = [line["examples_per_s"] for line in lines if line["split"] == "train"]
    return float(statistics.median(global_batch / speed for speed in speeds[len(speeds) // 2 :]))


def sent_bytes(lines: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Bytes sent by training, by kind."""
    found: dict[str, int] = {}
    for line in lines:
        for key, value in line.items():
            if key.startswith("sent_"):
                kind = key.removeprefix("sent_")
                found[kind] = found.get(kind, 0) + int(value)
    return found


def _modes(sizes: Sizes, say: Callable[[str], None]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for skew in (ZIPF, CRITEO):
        for seed in sizes.seeds:
            for name in MODES:
                cell = _train(
                    name, say, num_ranks=sizes.num_ranks, batch_size=sizes.batch_size,
                    steps=sizes.steps, skew=skew, rows_a_feature=sizes.rows_a_feature,
                    num_test=sizes.num_test, seed=seed,
                )  # fmt: skip
                rows.append({"skew": skew, "seed": seed, **cell})
    return rows


def _curves(sizes: Sizes, say: Callable[[str], None]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for model in ("WDL", "DFM"):
        for name in _CURVES:
            cell = _train(
                name, say, num_ranks=sizes.num_ranks, batch_size=sizes.batch_size,
                steps=sizes.epoch_steps, skew=ZIPF, rows_a_feature=sizes.rows_a_feature,
                num_test=max(500, sizes.num_test // 4), epochs=sizes.epochs, model=model,
            )  # fmt: skip
            rows.append({"model": model, **cell})
    return rows


def _dims(sizes: Sizes, say: Callable[[str], None]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for dim in sizes.dims:
        for name in _WIDE:
            cell = _train(
                name, say, num_ranks=sizes.num_ranks, batch_size=sizes.batch_size,
                steps=sizes.wide_steps, skew=ZIPF, rows_a_feature=sizes.wide_rows_a_feature,
                dim=dim, num_test=500, log_every=5,
            )  # fmt: skip
            rows.append({"dim": dim, "steps": sizes.wide_steps, **cell})
    return rows


def _train(name: str, say: Callable[[str], None], **settings: Any) -> dict[str, Any]:
    """Train one cell in processes of its own."""
    shown = ", ".join(f"{key} {value}" for key, value in settings.items() if key != "num_test")
    with tempfile.TemporaryDirectory() as folder:
        run_file, out = Path(folder) / "run.toml", Path(folder) / "run"
        run_file.write_text(run_text(MODES[name], **settings))
        words = [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            f"--nproc-per-node={settings['num_ranks']}",
            "-m", "outsize", "train", str(run_file), "--out", str(out), "--json",
        ]  # fmt: skip
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, env=one_thread, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{name} ({shown}) failed:\n{done.stderr[-3000:]}")
        summary = json.loads(done.stdout)
        lines = RunFolder(out).metrics()
    train = [line for line in lines if line["split"] == "train"]
    step_s = steady_step_s(lines, settings["num_ranks"] * settings["batch_size"])
    cell = {
        "mode": name,
        "auc": [line["auc"] for line in lines if line["split"] == "validation"],
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
    say(
        f"{name} ({shown}): {total / 1e6:,.1f} MB, AUC {cell['test_auc']:.5f}, "
        f"{step_s * 1e3:.1f} ms a step"
    )
    return cell


def _mode_table(rows: Sequence[Mapping[str, Any]]) -> str:
    base = next(row for row in rows if row["mode"] == "synchronous")
    everything = sum(base["sent_bytes"].values())
    lines = [
        f"## Modes, Zipf {base['skew']}\n",
        "| mode | MB sent | fewer bytes | ids | clocks | rows | gradients | hit rate | largest lag "
        "| test AUC | against synchronous | ms a step |",
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
    return "\n".join(lines) + f"\n\nBest reachable AUC (Bayes): {base['bayes_auc']:.5f}.\n"


def _curve_table(rows: Sequence[Mapping[str, Any]]) -> str:
    epochs = range(1, len(rows[0]["auc"]) + 1)
    lines = [
        f"| {rows[0]['model']} | {' | '.join(map(str, epochs))} |",
        "|---|" + "--:|" * len(epochs),
    ]
    for row in rows:
        lines.append(f"| {row['mode']} | {' | '.join(f'{auc:.4f}' for auc in row['auc'])} |")
    return "\n".join(lines) + "\n"


def _dim_table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| dim | mode | MB a step | fewer bytes | ms a step | speed-up |",
        "|--:|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        base = next(r for r in rows if r["dim"] == row["dim"] and r["mode"] == "synchronous")
        total, everything = (sum(r["sent_bytes"].values()) for r in (row, base))
        lines.append(
            f"| {row['dim']} | {row['mode']} | {total / row['steps'] / 1e6:.2f} "
            f"| {1 - total / everything:.1%} | {row['step_ms']:.1f} "
            f"| {base['step_ms'] / row['step_ms']:.2f} |"
        )
    return "\n".join(lines) + "\n"
