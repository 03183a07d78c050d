"""The parts of a cache of rows: look-ups of its directory, and steps of caches of any size."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.bench.timing import time_in_turns
from outsize.contracts import RowStore, RowUpdate
from outsize.kernels.directory.slots import slot_index
from outsize.kernels.rows.updates import AdagradRule
from outsize.spec import TableSpec
from outsize.stores import CachedStore, LocalStore

BATCHES_KEPT = 8
RATE = 0.01
BOUNDS = (100, 10)


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

    def hot_ids(self, draw: torch.Generator) -> Iterator[Int64[Tensor, " n"]]:
        """Distinct ids that occur, more of them than a step has."""
        hot = torch.randperm(self.num_rows, generator=draw)[: self.num_hot]
        while True:
            places = torch.rand(2 * self.num_ids, generator=draw).pow(3) * self.num_hot
            yield hot[places.long()].unique()


def measure_lookups(
    num_slots: int, *, rounds: int, calls: int = 1, device: str = "cpu"
) -> dict[str, Any]:
    """Look-ups per second of cached ids, drawn at random."""
    draw = torch.Generator().manual_seed(0)
    num_ids = 10 * num_slots
    held = torch.randperm(num_ids, generator=draw)[:num_slots]
    hits = held[torch.randint(0, num_slots, (num_slots,), generator=draw)].to(device)
    held = held.to(device)
    index = slot_index(held, num_ids)
    calls_by_name = {"hits": lambda: index.find(hits, held)}
    timing = time_in_turns(calls_by_name, rounds=rounds, calls=calls)["hits"]
    return {
        "num_slots": num_slots,
        "index": type(index).__name__,
        "bytes_per_slot": sum(tensor.nbytes for tensor in index.tensors()) / num_slots,
        "million_per_s": num_slots / timing.median_s / 1e6,
        **timing.in_ms(),
    }


def measure_growth(
    growth: Growth,
    batches: Sequence[Int64[Tensor, " n"]],
    *,
    rounds: int,
    calls: int,
    warmup: int,
    compiled: bool = False,
) -> dict[str, Any]:
    """Time steps of caches of different sizes in turns; all hold the ids that occur."""
    spec = TableSpec("rows", growth.num_rows, growth.dim)
    rule = AdagradRule(RATE, row_wise=True, compiled=compiled)
    steps: dict[str, Callable[[], None]] = {}
    for num_slots in (0, *growth.slots):
        store: RowStore = LocalStore([spec], device=batches[0].device)
        if num_slots:
            store = CachedStore(store, num_slots, *BOUNDS, growth.eviction)
        store.bind(rule)
        steps[str(num_slots)] = partial(read_and_update, store, cycle(batches))
    timings = time_in_turns(steps, rounds=rounds, calls=calls, warmup=warmup)
    first, last = (timings[str(growth.slots[i])].median_s for i in (0, -1))
    del steps
    gc.collect()
    return {
        **asdict(growth),
        "variants": {name: timing.in_ms() for name, timing in timings.items()},
        "ratio": last / first,
    }


def read_and_update(store: RowStore, turn: Iterator[Tensor]) -> None:
    """Read the rows of the next batch, and submit an update of them."""
    ids = next(turn)
    rows = store.exchange(None, ids).rows[0]
    store.submit(RowUpdate(ids, (rows * 0.01,), torch.ones_like(ids)))
