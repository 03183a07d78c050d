"""A cache of remote rows beside the same store without it, on the CPU of one machine.

Ranks are forked processes that talk over gloo. In each of them, a sharded store and the same store
behind a cache train on the same batches in turns, so that whatever else the machine does meets
both. Two more parts look at the cache alone: look-ups of its directory, and steps of caches of
different sizes that read the same ids.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from outsize.bench.cache_on_one_device import run_on_one_device, table_of_one_device
from outsize.bench.cache_parts import (
    BATCHES_KEPT,
    BOUNDS,
    RATE,
    Growth,
    measure_growth,
    measure_lookups,
)
from outsize.bench.full_caches import FullShape, measure_full_caches, table_of_parts
from outsize.bench.runner import Benchmark
from outsize.bench.timing import cell, summarize
from outsize.bench.workloads import Features, make_batches, train_rows
from outsize.collection import EmbeddingCollection
from outsize.contracts import RowStore
from outsize.errors import RanksError
from outsize.kernels.threads import torch_threads
from outsize.optimizers import RowAdagrad
from outsize.spec import FeatureSpec, TableSpec
from outsize.stores import CachedStore, ShardedStore

ABOUT = "milliseconds of a step of sharded rows with and without a cache, and of its parts"
_MOST_S = 3600.0


@dataclass(frozen=True)
class Shape(Features):
    """The work of one rank.

    Attributes:
        share: Capacity of the cache, as a share of all rows.
        eviction: Which rows are cached.
    """

    num_rows: int = 20_000
    dim: int = 128
    batch_size: int = 512
    share: float = 0.1
    eviction: str = "fading-lfu"


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure look-ups, growth with the size of the cache, and steps of 1, 2 and 4 ranks."""
    shape, growth, num_slots = Shape(), Growth(), 1_000_000
    full = FullShape(growth.num_rows, growth.dim, growth.num_ids, 80, growth.slots)
    rank_counts: Sequence[int] = (4, 2, 1)
    if quick:
        shape = replace(shape, num_tables=2, num_rows=300, dim=4, batch_size=16)
        growth = replace(growth, num_rows=9000, num_ids=20, num_hot=50, slots=(4096, 8192))
        full = FullShape(9000, 4, 20, 3, (4096, 8192))
        num_slots, rank_counts = 5000, (2,)
    with torch_threads(1):
        say(f"directory of {num_slots:,} copies")
        lookups = measure_lookups(num_slots, rounds=3 if quick else 15)
        say(f"caches of {' and '.join(f'{num:,}' for num in growth.slots)} rows")
        given = {"rounds": 3 if quick else 25, "calls": 2 if quick else 8}
        hot = islice(growth.hot_ids(torch.Generator().manual_seed(0)), BATCHES_KEPT)
        grown = measure_growth(
            growth,
            [ids[: growth.num_ids] for ids in hot],
            warmup=4 * BATCHES_KEPT,
            compiled=True,
            **given,
        )
        evicting = measure_full_caches(full, "cpu", say, **given)
    points = []
    for num_ranks in rank_counts:
        say(f"{num_ranks} ranks, " + ", ".join(f"{k} {v}" for k, v in asdict(shape).items()))
        points.append(measure_ranks(shape, num_ranks, *((2, 1) if quick else (15, 4))))
    return {
        "lookups": lookups,
        "growth": grown,
        "full": evicting,
        "points": points,
        **{name: value for name, value in points[0].items() if name.startswith("ratio_")},
        "ratio_slots": grown["ratio"],
    }


def measure_ranks(shape: Shape, num_ranks: int, rounds: int, calls: int) -> dict[str, Any]:
    """Time steps of all variants in turns, on several processes; the slowest rank counts."""
    # A fork after torch has started threads may hang.
    kind = "fork" if torch.get_num_threads() == 1 else "spawn"
    context: Any = multiprocessing.get_context(kind)
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="outsize-") as folder:
        given = (num_ranks, str(Path(folder) / "meeting"), shape, rounds, calls, results)
        ranks = [
            context.Process(target=_train_as_rank, args=(rank, *given), daemon=True)
            for rank in range(num_ranks)
        ]
        for process in ranks:
            process.start()
        deadline = time.monotonic() + _MOST_S
        while any(process.is_alive() for process in ranks) and results.empty():
            if any(process.exitcode for process in ranks) or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        found = None if results.empty() else results.get()
        for process in ranks:
            process.join(60 if found is not None else 0)
            process.kill()
    if found is None:
        raise RanksError("a rank of the benchmark failed; its error is above")
    return {"num_ranks": num_ranks, **asdict(shape), **found}


def run_on(quick: bool, say: Callable[[str], None], device: str) -> dict[str, Any]:
    """Measure on the CPU as by default, or on one GPU: `cache_on_one_device`."""
    return run(quick, say) if device == "cpu" else run_on_one_device(quick, say, device)


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    if "steps" in results:
        return table_of_one_device(results)
    lines = [
        *table_of_parts(results, "second by one thread"),
        "Milliseconds per step (forward, backward and update of rows) of the slowest rank:\n",
        "| ranks | wire | sharded | with a cache | ratio | CPU ratio | hit rate |",
        "|--:|---|--:|--:|--:|--:|--:|",
    ]
    for point in results["points"]:
        for wire, cells in point["wires"].items():
            lines.append(
                f"| {point['num_ranks']} | {wire} | {cell(cells['sharded'])} | "
                f"{cell(cells['cached'])} | {point[f'ratio_{wire}']:.2f} | "
                f"{point[f'cpu_ratio_{wire}']:.2f} | {cells['hit_rate']:.2f} |"
            )
    return "\n".join(lines) + "\n"


def _train_as_rank(
    rank: int, num_ranks: int, meeting: str, shape: Shape, rounds: int, calls: int, results: Any
) -> None:
    """One rank: train all variants in turns, and put the results of the first rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=num_ranks
    )
    batches, gradient = make_batches(shape, BATCHES_KEPT, rank)
    steps: dict[str, Callable[[], None]] = {}
    stores: dict[str, RowStore] = {}
    for wire in ("float32", "int8"):
        for kind in ("sharded", "cached"):
            specs = [TableSpec(name, shape.num_rows, shape.dim) for name in shape.names]
            store: RowStore = ShardedStore(specs, wire=wire)
            if kind == "cached":
                num_slots = max(1, round(shape.share * store.layout.num_rows))
                store = CachedStore(store, num_slots, *BOUNDS, shape.eviction)
            stores[f"{kind} {wire}"] = store
            steps[f"{kind} {wire}"] = _training_step(shape, store, cycle(batches), gradient)
    wall, cpu = _time_ranks(steps, rounds, calls)
    found: dict[str, Any] = {"wires": {}}
    for wire in ("float32", "int8"):
        counts = stores[f"cached {wire}"].take_counts()
        assert counts is not None
        cells: dict[str, Any] = {
            k: summarize(wall[f"{k} {wire}"]).in_ms() for k in ("sharded", "cached")
        }
        cells["hit_rate"] = counts.hits / max(1, counts.reads - counts.local)
        found["wires"][wire] = cells
        for name, times in (("ratio", wall), ("cpu_ratio", cpu)):
            both = (statistics.median(times[f"{k} {wire}"]) for k in ("cached", "sharded"))
            cached, sharded = both
            found[f"{name}_{wire}"] = cached / sharded
    dist.barrier()
    if rank == 0:
        results.put(found)
    dist.destroy_process_group()


def _time_ranks(
    steps: dict[str, Callable[[], None]], rounds: int, calls: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds and CPU seconds per step: the most and the sum over ranks, for every round."""
    for step in steps.values():
        for _ in range(3 * BATCHES_KEPT if calls > 1 else 2):
            step()
    wall: dict[str, list[float]] = {name: [] for name in steps}
    cpu: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            dist.barrier()
            started, used = time.perf_counter(), time.process_time()
            for _ in range(calls):
                step()
            taken = torch.tensor([time.perf_counter() - started], dtype=torch.float64)
            spent = torch.tensor([time.process_time() - used], dtype=torch.float64)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            dist.all_reduce(spent)
            wall[name].append(taken.item() / calls)
            cpu[name].append(spent.item() / calls)
    return wall, cpu


def _training_step(
    shape: Shape, store: RowStore, turn: Iterator[dict[str, Tensor]], gradient: Tensor
) -> Callable[[], None]:
    rows = RowAdagrad(store, RATE)
    embeddings = EmbeddingCollection([FeatureSpec(name) for name in shape.names], store)
    return partial(train_rows, embeddings, rows, turn, gradient)


BENCHMARK = Benchmark("cache", "outsize bench cache", ABOUT, run, table, run_on)
