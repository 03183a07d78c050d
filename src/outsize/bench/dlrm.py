"""Training speed of DLRM against the same model in plain PyTorch; the cost of rows and of the loop.

The peer is what a PyTorch user writes (`plain_dlrm`). On a GPU, ours is timed as `outsize train`
runs it, in a CUDA graph with fused rows, and one kernel at a time; and the peer also with its dense
part compiled by `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch

from outsize.bench.loop_share import bare_steps, loop_lines, measure_loop_share
from outsize.bench.plain_dlrm import PlainSteps
from outsize.bench.rows_share import measure_rows_share
from outsize.bench.runner import Benchmark
from outsize.bench.timing import time_in_turns
from outsize.data import ClickBatch, SyntheticConfig
from outsize.models import DLRM
from outsize.training.build import build_dense_optimizer
from outsize.training.config import (
    OptimizerConfig,
    RunConfig,
    TrainConfig,
)
from outsize.training.graphed_step import build_step
from outsize.training.loop_state import LoopState
from outsize.training.store_config import RowOptimizerConfig, StoreConfig
from outsize.training.tables_config import TablesConfig
from outsize.training.tasks import ClickTask
from outsize.training.training_sums import TrainingSums

ABOUT = "DLRM examples/s beside plain PyTorch, and the shares of rows, data and loop in a step"
_BATCHES_KEPT = 8
_MOST_PARAMS = 16_384  # of a compressed table
_NAMES = {
    "plain": "plain PyTorch",
    "compiled": "compiled plain PyTorch",
    "eager": "Outsize without a graph",
    "outsize": "Outsize",
}
Step = Callable[[], object]


def run(quick: bool, say: Callable[[str], None], device: str = "auto") -> dict[str, Any]:
    """Measure every batch size and optimizer; a few minutes on two cores."""
    data = SyntheticConfig(
        num_train=1 << 30,
        largest_vocabulary=10_000 if quick else 1_000_000,
        num_validation=1,
        num_test=1,
    )
    # The default, set explicitly: torch's Adagrad warns if it is not.
    torch.sparse.check_sparse_tensor_invariants.disable()
    on_gpu = torch.cuda.is_available() and device != "cpu"
    sizes = (128,) if quick else (128, 2048, 16_384)
    rounds = 3 if quick else 9 if on_gpu else 15
    results: dict[str, Any] = {"speed": [], "rows": [], "loop": []}
    for batch_size in sizes:
        calls = 2 if quick else max(16 if on_gpu else 1, 8192 // batch_size)
        for kind in ("sgd", "adagrad"):
            say(f"batch {batch_size:,}, {kind}")
            config = _config(data, batch_size, kind, device)
            results["speed"].append(_speed(config, kind, rounds, calls))
        config = _config(data, batch_size, "adagrad", device)
        say(f"batch {batch_size:,}, rows")
        results["rows"].append(_rows_share(config, rounds, calls))
        if on_gpu:
            say(f"batch {batch_size:,}, compressed tables")
            results.setdefault("tables", []).append(_tables_speed(config, rounds, calls))
        say(f"batch {batch_size:,}, loop")
        # Long turns on a GPU, where examples of many batches are generated at once.
        calls = 512 if on_gpu and batch_size < 2048 and not quick else calls * (4 if on_gpu else 1)
        results["loop"].append(measure_loop_share(config, rounds, calls))
    return results


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    # Older results have no names, and were given without a graph.
    names = results["speed"][0].get("variants", ["plain", "outsize"])
    head = " | ".join(_NAMES[name] for name in names)
    compared = [name for name in names if name in ("plain", "compiled")]
    beside = " | ".join("speed-up" if n == "plain" else "over compiled" for n in compared)
    lines = [
        "Examples per second (median of rounds taken in turns; p10 to p90 in brackets).\n",
        f"| batch | optimizer | {head} | {beside} |",
        "|--:|---|" + "--:|" * (len(names) + len(compared)),
    ]
    for row in results["speed"]:
        rates = " | ".join(_rate(row, name) for name in names)
        ratios = [row[n]["median_s"] / row["outsize"]["median_s"] for n in compared]
        times = " | ".join(f"{ratio:.2f}×" for ratio in ratios)
        lines.append(f"| {row['batch_size']:,} | {row['optimizer']} | {rates} | {times} |")
    if "peak_bytes" in results["speed"][0]:
        lines += _memory_lines(results["speed"], names)
    if "tables" in results:  # on a GPU
        lines += _tables_lines(results["tables"])
    if "rows" in results:  # older results have none
        lines += _rows_lines(results["rows"])
    lines += loop_lines(results["loop"])
    return "\n".join(lines) + "\n"


def _memory_lines(results: list[dict[str, Any]], names: Sequence[str]) -> list[str]:
    lines = [
        "\nPeak memory of a model with its training steps, MB.\n",
        f"| batch | optimizer | {' | '.join(_NAMES[name] for name in names)} |",
        "|--:|---|" + "--:|" * len(names),
    ]
    for row in results:
        sizes = " | ".join(f"{row['peak_bytes'][name] / 1e6:,.0f}" for name in names)
        lines.append(f"| {row['batch_size']:,} | {row['optimizer']} | {sizes} |")
    return lines


def _tables_lines(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"\nThe same model with CCE tables of at most {_MOST_PARAMS:,} parameters, by Adagrad.\n",
        f"| batch | {_NAMES['eager']} | {_NAMES['outsize']} | speed-up |",
        "|--:|--:|--:|--:|",
    ]
    for row in results:
        ratio = row["eager"]["median_s"] / row["outsize"]["median_s"]
        rates = " | ".join(_rate(row, name) for name in ("eager", "outsize"))
        lines.append(f"| {row['batch_size']:,} | {rates} | {ratio:.2f}× |")
    return lines


def _rows_lines(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        "\nWhat rows (look-up, gradients of rows, update) add to a step on given vectors, by "
        "row-wise Adagrad; and what they take alone.\n",
        "| batch | step | step on given vectors | share of rows | rows alone | their share |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for row in results:
        step, dense, rows = (
            f"{row[n]['median_s'] * 1e3:.2f} ms" for n in ("step", "dense", "rows")
        )
        lines.append(
            f"| {row['batch_size']:,} | {step} | {dense} | {row['share']:.1%} | {rows} | "
            f"{row['share_alone']:.1%} |"
        )
    return lines


def _speed(config: RunConfig, kind: str, rounds: int, calls: int) -> dict[str, Any]:
    task = ClickTask(config)
    on_gpu = task.device.type == "cuda"
    batches = list(islice(task.train_batches(0, 0), _BATCHES_KEPT))
    plain = PlainSteps(task.data, kind, batches, task.device)
    makers: dict[str, Callable[[], Step]] = {"plain": plain.eager}
    if on_gpu:
        without = replace(config, train=replace(config.train, cuda_graph=False))
        makers |= {
            "compiled": plain.compiled,
            "eager": lambda: _steps_of_run(ClickTask(without), without, batches),
            "outsize": lambda: _steps_of_run(task, config, batches),
        }
    else:
        dense = build_dense_optimizer(config.optimizer, task.model)
        assert task.rows is not None
        optimizers = [dense, task.rows]
        makers |= {"outsize": lambda: bare_steps(task.model, optimizers, batches)}
    steps, peaks = {}, {}
    for name, make in makers.items():
        steps[name], peaks[name] = _with_peak(make)
    timings = time_in_turns(steps, rounds=rounds, calls=calls)
    return {
        "batch_size": config.train.batch_size,
        "optimizer": kind if kind == "sgd" else "Adagrad (ours: row-wise for rows)",
        "variants": list(steps),
        "speed_up": timings["plain"].median_s / timings["outsize"].median_s,
        **({"peak_bytes": peaks} if on_gpu else {}),
        **{name: asdict(timing) for name, timing in timings.items()},
    }


def _tables_speed(config: RunConfig, rounds: int, calls: int) -> dict[str, Any]:
    """Steps of compressed tables, captured and not."""
    config = replace(config, embeddings=TablesConfig(method="cce", max_params=_MOST_PARAMS))
    eager = replace(config, train=replace(config.train, cuda_graph=False))
    task = ClickTask(config)
    batches = list(islice(task.train_batches(0, 0), _BATCHES_KEPT))
    steps = {
        "eager": _steps_of_run(ClickTask(eager), eager, batches),
        "outsize": _steps_of_run(task, config, batches),
    }
    timings = time_in_turns(steps, rounds=rounds, calls=calls, warmup=6)
    measured = {name: asdict(timing) for name, timing in timings.items()}
    return {"batch_size": config.train.batch_size, **measured}


def _with_peak(make: Callable[[], Step]) -> tuple[Step, int]:
    """A step that has run a few times, and the GPU memory that it and its model need at most."""
    if not torch.cuda.is_available():
        return make(), 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step = make()
    for _ in range(6):
        step()
    torch.cuda.synchronize()
    return step, torch.cuda.max_memory_allocated() - before


def _rows_share(config: RunConfig, rounds: int, calls: int) -> dict[str, Any]:
    task = ClickTask(config)
    batches = list(islice(task.train_batches(0, 0), _BATCHES_KEPT))
    make = partial(build_dense_optimizer, config.optimizer)
    assert isinstance(task.model, DLRM)
    assert task.rows is not None
    shares = measure_rows_share(
        task.model, make(task.model), task.rows, batches, make, rounds=rounds, calls=calls
    )
    return {"batch_size": config.train.batch_size, **shares}


def _steps_of_run(task: ClickTask, config: RunConfig, batches: Sequence[ClickBatch]) -> Step:
    """A function that takes a run's training step, without its loop, on stored batches in turn."""
    dense = build_dense_optimizer(config.optimizer, task.model)
    optimizers = [dense, *([task.rows] if task.rows else [])]
    taken = build_step(task, config, optimizers, TrainingSums(task), print)
    state, turn = LoopState(), cycle(batches)
    task.model.train()
    return lambda: taken.take(next(turn), state)


def _optimizer(kind: str) -> OptimizerConfig:
    return OptimizerConfig(kind="sgd" if kind == "sgd" else "adagrad", learning_rate=0.01)


def _config(data: SyntheticConfig, batch_size: int, kind: str, device: str) -> RunConfig:
    rows = RowOptimizerConfig(kind="sgd" if kind == "sgd" else "adagrad", learning_rate=0.01)
    return RunConfig(
        data=data,
        embeddings=StoreConfig(dim=16, optimizer=rows),
        optimizer=_optimizer(kind),
        train=TrainConfig(batch_size=batch_size, device=device),
    )


def _rate(row: Mapping[str, Any], name: str) -> str:
    rates = [row["batch_size"] / row[name][key] for key in ("median_s", "p90_s", "p10_s")]
    return "{:,.0f} ({:,.0f} to {:,.0f})".format(*rates)


BENCHMARK = Benchmark("dlrm", "outsize bench dlrm", ABOUT, run, table, run_on=run)
