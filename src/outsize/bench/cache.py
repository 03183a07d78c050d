"""A cache of remote rows beside the same store without it, on the CPU of one machine.

Ranks are forked processes that talk over gloo. In each of them, a sharded store and the same store
behind a cache train on the same batches in turns, so that whatever else the machine does meets
both. Two more parts look at the cache alone: look-ups of its directory, and steps of caches of
different sizes that read the same ids.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from outsize.bench.runner import Benchmark
from outsize.bench.timing import time_in_turns
from outsize.collection import EmbeddingCollection
from outsize.contracts import RowStore, RowUpdate
from outsize.data.zipf import Zipf
from outsize.errors import RanksError
from outsize.kernels.directory.slots import slot_index
from outsize.kernels.rows.updates import AdagradRule
from outsize.optimizers import RowAdagrad
from outsize.spec import FeatureSpec, TableSpec
from outsize.stores import CachedStore, LocalStore, ShardedStore

ABOUT = "milliseconds of a step of sharded rows with and without a cache, and of its parts"
_BATCHES_KEPT = 8
_RATE = 0.01
_BOUNDS = (100, 10)
_MOST_S = 3600.0


@dataclass(frozen=True)
class Shape:
    """The work of one rank.

    Attributes:
        num_tables: Number of tables, one feature each.
        num_rows: Rows per table.
        dim: Width of a row.
        batch_size: Examples per step.
        skew: Exponent of the Zipf distribution of ids.
        share: Capacity of the cache, as a share of all rows.
        eviction: Which rows are cached.
    """

    num_tables: int = 26
    num_rows: int = 20_000
    dim: int = 128
    batch_size: int = 512
    skew: float = 1.05
    share: float = 0.1
    eviction: str = "fading-lfu"

    @property
    def names(self) -> list[str]:
        """The names of the features."""
        return [f"feature{i}" for i in range(self.num_tables)]


@dataclass(frozen=True)
class Growth:
    """Steps of caches of several sizes over one store, with the same ids.

    Attributes:
        num_rows: Rows of the table.
        dim: Width of a row.
        num_ids: Distinct ids per step.
        num_hot: Ids that occur; they fit into the smallest cache.
        slots: Sizes of the caches.
        eviction: Which rows are cached.
    """

    num_rows: int = 4_000_000
    dim: int = 16
    num_ids: int = 2_400
    num_hot: int = 60_000
    slots: tuple[int, ...] = (100_000, 2_500_000)
    eviction: str = "fading-lfu"


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure look-ups, growth with the size of the cache, and steps of 1, 2 and 4 ranks."""
    shape, growth, num_slots = Shape(), Growth(), 1_000_000
    rank_counts: Sequence[int] = (4, 2, 1)
    if quick:
        shape = replace(shape, num_tables=2, num_rows=300, dim=4, batch_size=16)
        growth = replace(growth, num_rows=9000, num_ids=20, num_hot=50, slots=(4096, 8192))
        num_slots, rank_counts = 5000, (2,)
    with _one_thread():
        say(f"directory of {num_slots:,} copies")
        lookups = measure_lookups(num_slots, rounds=3 if quick else 15)
        say(f"caches of {' and '.join(f'{num:,}' for num in growth.slots)} rows")
        grown = measure_growth(growth, rounds=3 if quick else 25, calls=2 if quick else 8)
    points = []
    for num_ranks in rank_counts:
        say(f"{num_ranks} ranks, " + ", ".join(f"{k} {v}" for k, v in asdict(shape).items()))
        points.append(measure_ranks(shape, num_ranks, *((2, 1) if quick else (15, 4))))
    return {
        "lookups": lookups,
        "growth": grown,
        "points": points,
        **{name: value for name, value in points[0].items() if name.startswith("ratio_")},
        "ratio_slots": grown["ratio"],
    }


def measure_lookups(num_slots: int, *, rounds: int) -> dict[str, Any]:
    """Look-ups per second of cached ids, drawn at random, by one thread."""
    draw = torch.Generator().manual_seed(0)
    num_ids = 10 * num_slots
    held = torch.randperm(num_ids, generator=draw)[:num_slots]
    index = slot_index(held, num_ids)
    hits = held[torch.randint(0, num_slots, (num_slots,), generator=draw)]
    timing = time_in_turns({"hits": lambda: index.find(hits, held)}, rounds=rounds, calls=1)["hits"]
    return {
        "num_slots": num_slots,
        "index": type(index).__name__,
        "bytes_per_slot": sum(tensor.nbytes for tensor in index.tensors()) / num_slots,
        "million_per_s": num_slots / timing.median_s / 1e6,
        **timing.in_ms(),
    }


def measure_growth(growth: Growth, *, rounds: int, calls: int) -> dict[str, Any]:
    """Time steps of caches of different sizes in turns; all hold the ids that occur."""
    draw = torch.Generator().manual_seed(0)
    hot = torch.randperm(growth.num_rows, generator=draw)[: growth.num_hot]
    batches = []
    for _ in range(_BATCHES_KEPT):
        places = torch.rand(2 * growth.num_ids, generator=draw).pow(3) * growth.num_hot
        batches.append(hot[places.long()].unique()[: growth.num_ids])
    spec, rule = (
        TableSpec("rows", growth.num_rows, growth.dim),
        AdagradRule(_RATE, row_wise=True, compiled=True),
    )
    steps: dict[str, Callable[[], None]] = {}
    for num_slots in (0, *growth.slots):
        store: RowStore = LocalStore([spec])
        if num_slots:
            store = CachedStore(store, num_slots, *_BOUNDS, growth.eviction)
        store.bind(rule)
        steps[str(num_slots)] = partial(_step_rows, store, cycle(batches))
    timings = time_in_turns(steps, rounds=rounds, calls=calls, warmup=4 * _BATCHES_KEPT)
    first, last = (timings[str(growth.slots[i])].median_s for i in (0, -1))
    del steps
    gc.collect()
    return {
        **asdict(growth),
        "variants": {name: timing.in_ms() for name, timing in timings.items()},
        "ratio": last / first,
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


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lookups, growth = results["lookups"], results["growth"]
    lines = [
        f"Directory: {lookups['million_per_s']:.0f} million look-ups per second by one thread, of "
        f"ids among {lookups['num_slots']:,} copies ({lookups['bytes_per_slot']:.0f} bytes each)\n",
        f"Milliseconds per step of {growth['num_ids']:,} ids of dim {growth['dim']}, the same for "
        "every size of the cache (median of rounds taken in turns; p10 to p90 in brackets); 0 is "
        "the store without a cache:\n",
        "| rows in the cache | ms per step |",
        "|--:|--:|",
    ]
    for name, found in growth["variants"].items():
        lines.append(f"| {int(name):,} | {_cell(found)} |")
    lines.append(f"\nThe largest cache takes {growth['ratio']:.2f}× as long as the smallest.\n")
    lines += [
        "Milliseconds per step (forward, backward and update of rows) of the slowest rank:\n",
        "| ranks | wire | sharded | with a cache | ratio | CPU ratio | hit rate |",
        "|--:|---|--:|--:|--:|--:|--:|",
    ]
    for point in results["points"]:
        for wire, cells in point["wires"].items():
            lines.append(
                f"| {point['num_ranks']} | {wire} | {_cell(cells['sharded'])} | "
                f"{_cell(cells['cached'])} | {point[f'ratio_{wire}']:.2f} | "
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
    batches, gradient = _make_batches(shape, rank)
    steps: dict[str, Callable[[], None]] = {}
    stores: dict[str, RowStore] = {}
    for wire in ("float32", "int8"):
        for kind in ("sharded", "cached"):
            specs = [TableSpec(name, shape.num_rows, shape.dim) for name in shape.names]
            store: RowStore = ShardedStore(specs, wire=wire)
            if kind == "cached":
                num_slots = max(1, round(shape.share * store.layout.num_rows))
                store = CachedStore(store, num_slots, *_BOUNDS, shape.eviction)
            stores[f"{kind} {wire}"] = store
            steps[f"{kind} {wire}"] = _training_step(shape, store, cycle(batches), gradient)
    wall, cpu = _time_ranks(steps, rounds, calls)
    found: dict[str, Any] = {"wires": {}}
    for wire in ("float32", "int8"):
        counts = stores[f"cached {wire}"].take_counts()
        assert counts is not None
        cells: dict[str, Any] = {k: _summary(wall[f"{k} {wire}"]) for k in ("sharded", "cached")}
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
        for _ in range(3 * _BATCHES_KEPT if calls > 1 else 2):
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
    rows = RowAdagrad(store, _RATE)
    embeddings = EmbeddingCollection([FeatureSpec(name) for name in shape.names], store)

    def step() -> None:
        rows.zero_grad()
        embeddings.stacked(next(turn)).backward(gradient)
        rows.step()

    return step


def _step_rows(store: RowStore, turn: Iterator[Tensor]) -> None:
    ids = next(turn)
    rows = store.exchange(None, ids).rows[0]
    store.submit(RowUpdate(ids, (rows * 0.01,), torch.ones_like(ids)))


def _make_batches(shape: Shape, seed: int) -> tuple[list[dict[str, Tensor]], Tensor]:
    draw = torch.Generator().manual_seed(seed)
    zipf = Zipf([shape.num_rows], shape.skew)

    def ids() -> Tensor:
        ranks = zipf.ranks(torch.rand(shape.batch_size, 1, generator=draw)).squeeze(1)
        return ranks * 48_271 % shape.num_rows

    batches = [{name: ids() for name in shape.names} for _ in range(_BATCHES_KEPT)]
    gradient = torch.randn(shape.batch_size, shape.num_tables, shape.dim, generator=draw)
    return batches, gradient / shape.batch_size


def _summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {
        "median_ms": statistics.median(ordered) * 1e3,
        "p10_ms": ordered[round(last * 0.1)] * 1e3,
        "p90_ms": ordered[round(last * 0.9)] * 1e3,
        "rounds": len(ordered),
    }


def _cell(found: dict[str, float]) -> str:
    return "{median_ms:.2f} ({p10_ms:.2f} to {p90_ms:.2f})".format(**found)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


BENCHMARK = Benchmark("cache", "outsize bench cache", ABOUT, run, table)
