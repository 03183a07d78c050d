"""Training speed of DLRM against the same model in plain PyTorch; the cost of rows and of the loop.

The peer is what a PyTorch user writes: one `nn.EmbeddingBag(sparse=True)` per feature and a torch
optimizer that takes sparse gradients. Its MLPs and interaction are the same code as in our DLRM, so
the two differ only in how embeddings are looked up and updated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer

from outsize.bench.rows_share import measure_rows_share
from outsize.bench.runner import Benchmark
from outsize.bench.timing import time_in_turns
from outsize.data import ClickBatch, SyntheticConfig
from outsize.models import DLRM
from outsize.models.mlp import mlp
from outsize.training.build import build_dense_optimizer
from outsize.training.config import (
    OptimizerConfig,
    RunConfig,
    TrainConfig,
)
from outsize.training.loop import Loop
from outsize.training.store_config import RowOptimizerConfig, StoreConfig
from outsize.training.tasks import ClickTask

ABOUT = "DLRM examples/s beside plain PyTorch, and the shares of rows, data and loop in a step"
_BATCHES_KEPT = 8


class PlainDLRM(nn.Module):
    """DLRM as written without this library."""

    def __init__(self, num_dense: int, vocabularies: Mapping[str, int], dim: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.tables = nn.ModuleDict(
            {
                name: nn.EmbeddingBag(size, dim, mode="sum", sparse=True)
                for name, size in vocabularies.items()
            }
        )
        self.bottom = mlp((num_dense, 512, 256, 64, dim), final_relu=True, generator=generator)
        num_vectors = len(vocabularies) + 1
        row, column = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        self.register_buffer("pairs", row * num_vectors + column)
        self.top = mlp((row.numel() + dim, 512, 256, 1), final_relu=False, generator=generator)

    def forward(self, dense: Tensor, ids: Mapping[str, Tensor]) -> Tensor:
        """Logits `(B,)`."""
        hidden = self.bottom(dense)
        vectors = [table(ids[name].unsqueeze(1)) for name, table in self.tables.items()]
        stacked = torch.stack([hidden, *vectors], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        features = torch.cat((hidden, products.index_select(1, self.get_buffer("pairs"))), dim=1)
        logits: Tensor = self.top(features).squeeze(1)
        return logits


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure every batch size and optimizer; a few minutes on two cores."""
    data = SyntheticConfig(
        num_train=1 << 30,
        largest_vocabulary=10_000 if quick else 1_000_000,
        num_validation=1,
        num_test=1,
    )
    # The default, set explicitly: torch's Adagrad warns if it is not.
    torch.sparse.check_sparse_tensor_invariants.disable()
    sizes = (128,) if quick else (128, 2048, 16_384)
    results: dict[str, Any] = {"speed": [], "rows": [], "loop": []}
    for batch_size in sizes:
        # Long turns on a GPU, so that batches made ahead do not hide the cost of making them.
        calls = 2 if quick else max(20 if torch.cuda.is_available() else 1, 8192 // batch_size)
        rounds = 3 if quick else 15
        for kind in ("sgd", "adagrad"):
            say(f"batch {batch_size:,}, {kind}")
            results["speed"].append(_speed(data, batch_size, kind, rounds, calls))
        say(f"batch {batch_size:,}, rows")
        results["rows"].append(_rows_share(data, batch_size, rounds, calls))
        say(f"batch {batch_size:,}, loop")
        results["loop"].append(_loop_share(data, batch_size, rounds, calls))
    return results


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "Examples per second (median of rounds taken in turns; p10 to p90 in brackets).\n",
        "| batch | optimizer | plain PyTorch | Outsize | speed-up |",
        "|--:|---|--:|--:|--:|",
    ]
    for row in results["speed"]:
        lines.append(
            f"| {row['batch_size']:,} | {row['optimizer']} | {_rate(row, 'plain')} | "
            f"{_rate(row, 'outsize')} | {row['speed_up']:.2f}× |"
        )
    if "rows" in results:  # older results have none
        lines += _rows_lines(results["rows"])
    lines += [
        "\nWhat data and loop (schedules, checks, clipping, logging) add to a bare step on batches "
        "in memory. On a GPU, a thread makes batches ahead.\n",
        "| batch | step in the loop | bare step | making a batch | share of data and loop |",
        "|--:|--:|--:|--:|--:|",
    ]
    for row in results["loop"]:
        cells = [f"{row[name]['median_s'] * 1e3:.2f} ms" for name in ("loop", "bare", "data")]
        lines.append(f"| {row['batch_size']:,} | {' | '.join(cells)} | {row['share']:.1%} |")
    return "\n".join(lines) + "\n"


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


def _speed(
    data: SyntheticConfig, batch_size: int, kind: str, rounds: int, calls: int
) -> dict[str, Any]:
    task = ClickTask(_config(data, batch_size, kind))
    batches = list(islice(task.train_batches(0, 0), _BATCHES_KEPT))
    plain = PlainDLRM(task.data.num_dense, task.data.vocabularies, dim=16).to(task.device)
    plain_optimizer: Optimizer = (
        SGD(plain.parameters(), lr=0.01) if kind == "sgd" else Adagrad(plain.parameters(), lr=0.01)
    )
    dense = build_dense_optimizer(_optimizer(kind), task.model)
    assert task.rows is not None
    timings = time_in_turns(
        {
            "plain": _stepper(plain, [plain_optimizer], batches),
            "outsize": _stepper(task.model, [dense, task.rows], batches),
        },
        rounds=rounds,
        calls=calls,
    )
    return {
        "batch_size": batch_size,
        "optimizer": kind if kind == "sgd" else "Adagrad (ours: row-wise for rows)",
        "speed_up": timings["plain"].median_s / timings["outsize"].median_s,
        **{name: asdict(timing) for name, timing in timings.items()},
    }


def _rows_share(data: SyntheticConfig, batch_size: int, rounds: int, calls: int) -> dict[str, Any]:
    config = _config(data, batch_size, "adagrad")
    task = ClickTask(config)
    batches = list(islice(task.train_batches(0, 0), _BATCHES_KEPT))
    make = partial(build_dense_optimizer, config.optimizer)
    assert isinstance(task.model, DLRM)
    assert task.rows is not None
    shares = measure_rows_share(
        task.model, make(task.model), task.rows, batches, make, rounds=rounds, calls=calls
    )
    return {"batch_size": batch_size, **shares}


def _loop_share(data: SyntheticConfig, batch_size: int, rounds: int, calls: int) -> dict[str, Any]:
    config = _config(data, batch_size, "adagrad")
    task = ClickTask(config)
    loop = Loop(task, config, build_dense_optimizer(config.optimizer, task.model))
    steps = loop.steps()
    fresh = task.data.batches("train", batch_size)
    kept = list(islice(task.train_batches(0, 0), _BATCHES_KEPT))
    timings = time_in_turns(
        {
            "loop": lambda: next(steps),
            "bare": _stepper(task.model, loop.optimizers, kept),
            "data": lambda: next(fresh),
        },
        rounds=rounds,
        calls=calls,
    )
    share = 1 - timings["bare"].median_s / timings["loop"].median_s
    return {
        "batch_size": batch_size,
        "share": share,
        **{name: asdict(timing) for name, timing in timings.items()},
    }


def _stepper(
    model: nn.Module, optimizers: Sequence[Optimizer], batches: Sequence[ClickBatch]
) -> Callable[[], None]:
    """A function that takes one training step on the next of a few stored batches."""
    turn = cycle(batches)
    model.train()

    def step() -> None:
        batch = next(turn)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(batch.dense, batch.ids), batch.labels)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()

    return step


def _optimizer(kind: str) -> OptimizerConfig:
    return OptimizerConfig(kind="sgd" if kind == "sgd" else "adagrad", learning_rate=0.01)


def _config(data: SyntheticConfig, batch_size: int, kind: str) -> RunConfig:
    rows = RowOptimizerConfig(kind="sgd" if kind == "sgd" else "adagrad", learning_rate=0.01)
    return RunConfig(
        data=data,
        embeddings=StoreConfig(dim=16, optimizer=rows),
        optimizer=_optimizer(kind),
        train=TrainConfig(batch_size=batch_size),
    )


def _rate(row: Mapping[str, Any], name: str) -> str:
    rates = [row["batch_size"] / row[name][key] for key in ("median_s", "p90_s", "p10_s")]
    return "{:,.0f} ({:,.0f} to {:,.0f})".format(*rates)


BENCHMARK = Benchmark("dlrm", "outsize bench dlrm", ABOUT, run, table)
