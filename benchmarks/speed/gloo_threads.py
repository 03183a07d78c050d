"""Steps of ranks that share a machine's cores, with gloo's event loop as any thread and as batch.

    python -m benchmarks.speed.gloo_threads --out benchmarks/results

Each rank takes steps of a dense model whose gradients are averaged, of sharded rows, and of rows
behind a cache. Between turns, all ranks change how Linux schedules the thread that reads gloo's
sockets (`outsize.ranks.gloo_threads`); nothing else differs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from benchmarks.runner import run_command
from outsize.bench import Benchmark
from outsize.bench.cache import Shape
from outsize.bench.cache_parts import BATCHES_KEPT, BOUNDS, RATE
from outsize.bench.runner import Say
from outsize.bench.timing import Timing, cell, summarize
from outsize.bench.workloads import make_batches, train_rows
from outsize.collection import EmbeddingCollection
from outsize.optimizers import RowAdagrad
from outsize.plan.reference import dense_model, dense_reference
from outsize.ranks.gloo_threads import gloo_loops
from outsize.spec import FeatureSpec, TableSpec
from outsize.stores import CachedStore, ShardedStore
from outsize.training.build import averaging_gradients

POLICIES = ("other", "batch")
Step = Callable[[], None]


def run(quick: bool, say: Say) -> dict[str, Any]:
    """Measure as many ranks as cores, and twice as many."""
    cores = len(os.sched_getaffinity(0))
    points = []
    for num_ranks in (2,) if quick else dict.fromkeys((2, cores, 2 * cores)):
        say(f"{num_ranks} ranks, {cores} cores")
        with TemporaryDirectory(prefix="outsize-") as folder:
            given = (num_ranks, folder, 2 if quick else 25, 1 if quick else 8)
            start_processes(_rank, given, num_ranks, start_method="spawn")
            found = json.loads((Path(folder) / "found.json").read_text())
        points.append({"ranks": num_ranks, "cores": cores, "steps": found})
    return {"points": points}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "Milliseconds per step of the slowest rank (median of turns; p10 to p90 in brackets).\n",
        "| ranks | cores | step | any thread | batch thread | ratio |",
        "|--:|--:|---|--:|--:|--:|",
    ]
    for point in results["points"]:
        for name, times in point["steps"].items():
            cells = [cell(Timing(**times[policy]).in_ms()) for policy in POLICIES]
            ratio = times["batch"]["median_s"] / times["other"]["median_s"]
            lines.append(
                f"| {point['ranks']} | {point['cores']} | {name} | {' | '.join(cells)} | "
                f"{ratio:.2f} |"
            )
    return "\n".join(lines) + "\n"


def _rank(rank: int, num_ranks: int, folder: str, rounds: int, calls: int) -> None:
    """One rank: time each step under both policies in turns; the first one writes the results."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=num_ranks)
    steps = _steps(rank)
    for step in steps.values():
        for _ in range(3 * calls):
            step()
    times: dict[str, dict[str, list[float]]] = {
        name: {policy: [] for policy in POLICIES} for name in steps
    }
    for _ in range(rounds):
        for name, step in steps.items():
            for policy in POLICIES:
                _schedule(policy)
                dist.barrier()
                started = time.perf_counter()
                for _ in range(calls):
                    step()
                taken = torch.tensor((time.perf_counter() - started) / calls)
                dist.all_reduce(taken, dist.ReduceOp.MAX)
                times[name][policy].append(float(taken))
    if rank == 0:
        found = {
            name: {policy: asdict(summarize(each)) for policy, each in of_step.items()}
            for name, of_step in times.items()
        }
        (Path(folder) / "found.json").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # nothing is left to do, and a shutdown of threads is not what is measured


def _schedule(policy: str) -> None:
    number = {"other": os.SCHED_OTHER, "batch": os.SCHED_BATCH}[policy]
    for thread in gloo_loops():
        os.sched_setscheduler(thread, number, os.sched_param(0))


def _steps(rank: int) -> dict[str, Step]:
    shape = Shape(dim=16)
    batches, gradient = make_batches(shape, BATCHES_KEPT, rank)
    steps: dict[str, Step] = {"dense": dense_reference(averaging_gradients(dense_model()))}
    for kind in ("sharded rows", "cached rows"):
        specs = [TableSpec(name, shape.num_rows, shape.dim) for name in shape.names]
        store: ShardedStore | CachedStore = ShardedStore(specs)
        if kind == "cached rows":
            num_slots = round(shape.share * store.layout.num_rows)
            store = CachedStore(store, num_slots, *BOUNDS, shape.eviction)
        embeddings = EmbeddingCollection([FeatureSpec(name) for name in shape.names], store)
        rows = RowAdagrad(store, RATE)
        steps[kind] = partial(train_rows, embeddings, rows, cycle(batches), gradient)
    return steps


BENCHMARK = Benchmark(
    "gloo-threads",
    "python -m benchmarks.speed.gloo_threads",
    "steps of ranks that share cores, by how Linux schedules the thread that reads gloo's sockets",
    run,
    table,
)

if __name__ == "__main__":
    run_command(BENCHMARK)
