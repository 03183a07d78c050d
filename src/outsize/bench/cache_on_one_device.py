"""A cache in front of rows on the same device: steps beside those without it, and by torch.

One rank alone needs no cache. But the cache's own work is all that such a step adds, so it shows
what a cache costs a rank besides its messages, and how often the host waits for the device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor, nn

from outsize.bench.cache_parts import (
    BATCHES_KEPT,
    BOUNDS,
    RATE,
    Growth,
    measure_growth,
    measure_lookups,
)
from outsize.bench.full_caches import FullShape, measure_full_caches, table_of_parts
from outsize.bench.timing import cell, time_in_turns
from outsize.bench.workloads import scattered_ids
from outsize.collection import EmbeddingCollection
from outsize.contracts import RowStore
from outsize.optimizers import RowAdagrad
from outsize.spec import FeatureSpec, TableSpec
from outsize.stores import CachedStore, LocalStore


@dataclass(frozen=True)
class StepShape:
    """The work of a training step.

    Attributes:
        num_rows: Rows of the table, in which all features look up.
        dim: Width of a row.
        num_ids: Ids per step, with repeats.
        skew: Exponent of the Zipf distribution of ids.
        share: Capacity of the cache, as a share of all rows.
    """

    num_rows: int = 4_000_000
    dim: int = 128
    num_ids: int = 65_536
    skew: float = 1.05
    share: float = 0.1


def run_on_one_device(quick: bool, say: Callable[[str], None], device: str) -> dict[str, Any]:
    """Measure look-ups, rounds of caches of different sizes, and training steps."""
    torch.sparse.check_sparse_tensor_invariants.disable()  # torch's Adagrad warns without
    shape, full, num_slots = StepShape(), FullShape(), 1_000_000
    growth = Growth(num_rows=5_000_000, num_ids=16_384)
    shapes = [shape, replace(shape, num_ids=8192), replace(shape, dim=16)]
    if quick:
        shapes = [replace(shape, num_rows=2000, dim=4, num_ids=256)]
        growth = Growth(9000, 4, 20, 50, (4096, 8192))
        full = FullShape(9000, 4, 40, 5, (4096, 8192))
        num_slots = 5000
    rounds, calls = (3, 2) if quick else (20, 10)
    say(f"directory of {num_slots:,} copies")
    lookups = measure_lookups(num_slots, rounds=rounds, calls=5, device=device)
    say(f"caches of {' and '.join(f'{num:,}' for num in growth.slots)} rows")
    draw = torch.Generator().manual_seed(0)
    batches = []
    for hot in islice(growth.hot_ids(draw), BATCHES_KEPT):
        chosen = hot[torch.randperm(growth.num_ids, generator=draw) // 2]
        batches.append(chosen.unique().to(device))
    grown = measure_growth(growth, batches, rounds=rounds, calls=calls, warmup=2 * BATCHES_KEPT)
    evicting = measure_full_caches(full, device, say, rounds=rounds, calls=max(1, calls // 2))
    points = []
    for each in shapes:
        say(", ".join(f"{name} {value}" for name, value in asdict(each).items()))
        points.append(_steps(each, device, rounds, calls))
    return {
        "device": device,
        "lookups": lookups,
        "growth": grown,
        "full": evicting,
        "steps": points,
    }


def table_of_one_device(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        *table_of_parts(results, "second"),
        "Milliseconds per step (forward, backward and update of rows), and how often the host "
        "waits for the device in a step with a cache:\n",
        "| ids | dim | rows | torch SGD | torch Adagrad | store | with a cache | cache / store | "
        "waits | hit rate |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for point in results["steps"]:
        cells = " | ".join(cell(found) for found in point["variants"].values())
        waits = "–" if point["waits"] is None else f"{point['waits']:.1f}"
        lines.append(
            f"| {point['num_ids']:,} | {point['dim']} | {point['num_rows']:,} | {cells} | "
            f"{point['ratio']:.2f} | {waits} | {point['hit_rate']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def _steps(shape: StepShape, device: str, rounds: int, calls: int) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    batches = [
        scattered_ids(shape.num_rows, shape.num_ids, draw, shape.skew).to(device)
        for _ in range(BATCHES_KEPT)
    ]
    gradient = torch.randn(shape.num_ids, shape.dim, device=device) / shape.num_ids
    steps: dict[str, Callable[[], None]] = {}
    for name, optimizer in (("torch SGD", torch.optim.SGD), ("torch Adagrad", torch.optim.Adagrad)):
        embedding = nn.Embedding(shape.num_rows, shape.dim, sparse=True, device=device)
        update = optimizer(embedding.parameters(), lr=RATE)
        steps[name] = partial(_torch_step, embedding, update, cycle(batches), gradient)
    for name in ("store", "cached"):
        store: RowStore = LocalStore([TableSpec("rows", shape.num_rows, shape.dim)], device=device)
        if name == "cached":
            num_slots = max(1, round(shape.share * shape.num_rows))
            store = CachedStore(store, num_slots, *BOUNDS)
        embeddings = EmbeddingCollection([FeatureSpec("rows")], store)
        rows = RowAdagrad(store, RATE)
        steps[name] = partial(_row_step, embeddings, rows, cycle(batches), gradient)
    timings = time_in_turns(steps, rounds=rounds, calls=calls, warmup=2 * BATCHES_KEPT)
    counts = store.take_counts()
    assert counts is not None
    return {
        **asdict(shape),
        "variants": {name: timing.in_ms() for name, timing in timings.items()},
        "ratio": timings["cached"].median_s / timings["store"].median_s,
        "speedup_vs_torch_adagrad": timings["torch Adagrad"].median_s / timings["cached"].median_s,
        "waits": _waits_per_step(steps["cached"]) if device == "cuda" else None,
        "hit_rate": counts.hits / max(1, counts.reads),
        "evictions_per_read": counts.evictions / max(1, counts.reads),
    }


def _waits_per_step(step: Callable[[], None], num: int = 20) -> float:
    """How often the host waits for the device in a step, as torch reports it."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(num):
                step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA" in str(warning.message) for warning in caught) / num


def _torch_step(
    embedding: nn.Embedding, update: torch.optim.Optimizer, turn: Iterator[Tensor], gradient: Tensor
) -> None:
    update.zero_grad()
    embedding(next(turn)).backward(gradient)
    update.step()


def _row_step(
    embeddings: EmbeddingCollection, rows: RowAdagrad, turn: Iterator[Tensor], gradient: Tensor
) -> None:
    rows.zero_grad()
    embeddings({"rows": next(turn)})["rows"].backward(gradient)
    rows.step()
