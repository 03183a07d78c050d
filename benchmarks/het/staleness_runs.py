"""Training runs by several ranks with and without a cache: the cells of the staleness benchmarks.

Every cell is a whole run of `outsize train` by several ranks over gloo. Bytes are those sent from
one rank to another, summed over ranks. AUC is measured at the end of training on the test split. If
there are cores for several cells, they run in parallel, with one core per rank.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from outsize.data import SyntheticConfig
from outsize.files import write_text_atomically
from outsize.models import DeepFMConfig, WideDeepConfig
from outsize.training import load_config
from outsize.training.config import CheckpointConfig, OptimizerConfig, RunConfig, TrainConfig
from outsize.training.row_counts import sent_bytes
from outsize.training.run_folder import RunFolder
from outsize.training.store_config import CacheConfig, RowOptimizerConfig, StoreConfig
from outsize.training.strict_toml import encode, to_toml

ZIPF = 1.05
CRITEO = 1.22  # 1% of a million rows get 92% of the accesses, as in Criteo
REAL_DATA = {"us_flights": "us_flights_2024_01.parquet"}
_EXAMPLES = Path(__file__).parents[2] / "examples" / "real"
_NUM_FEATURES = 26
_CACHE_SHARE = 0.1
_NEVER = 1 << 40


@dataclass(frozen=True)
class Mode:
    """How rows are stored and sent.

    Attributes:
        store: "sharded", or "served" for asynchronous training.
        read: Read bound of the cache (s_r); `None` for no cache.
        write: Write bound of the cache (s_w); by default the read bound.
        wire: Format of rows and gradients in messages.
        overlap: Whether rows are exchanged one batch ahead, while a step computes.
    """

    store: Literal["sharded", "served"] = "sharded"
    read: float | None = None
    write: float | None = None
    wire: Literal["float32", "bfloat16", "int8"] = "float32"
    overlap: bool = False


MODES: dict[str, Mode] = {
    "synchronous": Mode(),
    "synchronous, bfloat16": Mode(wire="bfloat16"),
    "synchronous, int8": Mode(wire="int8"),
    "s = 0": Mode(read=0),
    "s = 2, int8": Mode(read=2, wire="int8"),
    "s = 10": Mode(read=10),
    "s = 10, int8": Mode(read=10, wire="int8"),
    "s = 100": Mode(read=100),
    "s = 100, int8": Mode(read=100, wire="int8"),
    "s = inf": Mode(read=math.inf),
    "read 100, write 10": Mode(read=100, write=10),
    "read 100, write 10, bfloat16": Mode(read=100, write=10, wire="bfloat16"),
    "read 100, write 10, int8": Mode(read=100, write=10, wire="int8"),
    "asynchronous": Mode(store="served"),
    "synchronous, overlapped": Mode(overlap=True),
    "synchronous, int8, overlapped": Mode(wire="int8", overlap=True),
    "s = 10, int8, overlapped": Mode(read=10, wire="int8", overlap=True),
}


TrainCell = Callable[..., dict[str, Any]]


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
    cells: Sequence[Mapping[str, Any]],
    say: Callable[[str], None],
    work: Path | None = None,
    jobs: int | None = None,
    train: TrainCell | None = None,
) -> list[dict[str, Any]]:
    """Train cells, in parallel if each rank can have its own core; results in the order of cells.

    Args:
        cells: Each with a "mode" and the arguments of `synthetic_run`, or with a "data_set" and
            those of `real_run`.
        say: Shows progress.
        work: Folder for the results of finished cells: a second call trains only what is missing.
        jobs: Number of cells at a time; by default as many as have a core per rank.
        train: Trains a cell, given `say` and the cell; by default a run on a log of clicks.
    """
    jobs = jobs or max(1, (os.cpu_count() or 1) // max(cell["num_ranks"] for cell in cells))
    chosen = train or _train
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda cell: {**cell, **_once(cell, say, work, chosen)}, cells))


def synthetic_run(
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
    checkpoint_every: int = _NEVER,
) -> RunConfig:
    """The run of a cell on a synthetic log.

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
        seed: Seed of the log, of rows and of weights.
        log_every: Steps per line of metrics; by default 25, or fewer for four lines in a short run.
        checkpoint_every: Steps between checkpoints, each of which flushes the caches.
    """
    is_wide = model == "WDL"
    return RunConfig(
        seed=seed,
        data=SyntheticConfig(
            num_train=steps * batch_size * num_ranks,
            num_validation=max(500, num_test // 4),
            num_test=num_test,
            vocabulary=(rows_per_feature,) * _NUM_FEATURES,
            skew=skew,
            seed=seed,
        ),
        model=WideDeepConfig.het() if is_wide else DeepFMConfig.het(),
        embeddings=StoreConfig(
            dim=dim if is_wide else dim + 1,  # DeepFM's rows also hold the weight of the id
            store=mode.store,
            wire=mode.wire,
            cache=cache_of(mode),
            overlap=mode.overlap,
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
        checkpoint=CheckpointConfig(every=checkpoint_every),
    )


def real_run(
    mode: Mode,
    *,
    data_set: str,
    folder: str,
    num_ranks: int,
    batch_size: int,
    dim: int = 64,
    seed: int = 0,
    checkpoint_every: int = _NEVER,
) -> RunConfig:
    """The run of a cell on a real data set: one epoch of the run file in `examples/real`.

    Args:
        mode: How rows are stored and sent.
        data_set: A key of `REAL_DATA`.
        folder: Where its file is.
        num_ranks: Number of ranks.
        batch_size: Examples per rank and step.
        dim: Numbers per row.
        seed: Seed of rows and weights.
        checkpoint_every: Steps between checkpoints, each of which flushes the caches.
    """
    settings = [
        f'data.path=["{Path(folder).resolve() / REAL_DATA[data_set]}"]', f"seed={seed}",
        f"train={{batch_size={batch_size}, epochs=1, early_stop=false, eval_batch_size=2048}}",
        f"checkpoint.every={checkpoint_every}", f"embeddings.dim={dim}", 'train.device="cpu"',
    ]  # fmt: skip
    found = load_config(_EXAMPLES / f"{data_set}.toml", settings)
    assert isinstance(found.embeddings, StoreConfig)
    rows = replace(
        found.embeddings,
        store=mode.store,
        wire=mode.wire,
        cache=cache_of(mode),
        overlap=mode.overlap,
    )
    return replace(found, embeddings=rows)


def steady_step_s(lines: Sequence[Mapping[str, Any]], global_batch: int) -> float:
    """Seconds per step: the median over the second half of the training lines."""
    speeds = [line["examples_per_s"] for line in lines if line["split"] == "train"]
    return float(statistics.median(global_batch / speed for speed in speeds[len(speeds) // 2 :]))


def cache_of(mode: Mode, share: float = _CACHE_SHARE, **given: Any) -> CacheConfig:
    """The cache of a mode.

    Args:
        mode: How rows are stored and sent.
        share: Share of the rows that it holds on each rank.
        **given: Other settings of the cache.
    """
    if mode.read is None:
        return CacheConfig()
    write = mode.read if mode.write is None else mode.write
    return CacheConfig(share, float(mode.read), float(write), **given)


def _once(
    cell: Mapping[str, Any], say: Callable[[str], None], work: Path | None, train: TrainCell
) -> dict[str, Any]:
    """The results of a cell: from `work` if they are there, trained and written there if not."""
    if work is None:
        return train(say=say, **cell)
    digest = hashlib.sha256(json.dumps(cell, sort_keys=True).encode()).hexdigest()[:16]
    path = work / f"{digest}.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
    results = train(say=say, **cell)
    work.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, json.dumps(results))
    return results


def launch(
    config: RunConfig, num_ranks: int, cell: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train by several ranks, in processes of their own.

    Args:
        config: The run.
        num_ranks: Number of ranks.
        cell: What to call it if it fails.

    Returns:
        The summary, and the lines of metrics.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_file, out = Path(folder) / "run.toml", Path(folder) / "run"
        run_file.write_text(to_toml(encode(config)))
        words = [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            f"--nproc-per-node={num_ranks}",
            "-m", "outsize", "train", str(run_file), "--out", str(out), "--json",
        ]  # fmt: skip
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, env=one_thread, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{cell} failed:\n{done.stderr[-3000:]}")
        return json.loads(done.stdout), list(RunFolder(out).metrics())


def _train(mode: str, say: Callable[[str], None], **settings: Any) -> dict[str, Any]:
    """Train one cell in its own processes."""
    build = real_run if "data_set" in settings else synthetic_run
    config = build(MODES[mode], **settings)
    summary, lines = launch(config, settings["num_ranks"], f"{mode} ({settings})")
    train = [line for line in lines if line["split"] == "train"]
    step_s = steady_step_s(lines, settings["num_ranks"] * settings["batch_size"])
    cell = {
        "run_steps": summary["steps"],
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
    named = ("data_set", "skew", "dim", "model", "seed", "checkpoint_every")
    told = ", ".join(f"{key} {settings[key]}" for key in named if key in settings)
    say(
        f"{mode} ({told}): {total / 1e6:,.1f} MB, AUC {cell['test_auc']:.5f}, "
        f"{step_s * 1e3:.1f} ms per step"
    )
    return cell
