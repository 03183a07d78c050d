"""Rounds of full caches of several sizes that evict in every step, with the same ids.

All slots are taken before the first round. A batch has ids that stay in the cache and *fresh* ones,
which enter it. Each fresh id is in two batches in a row: `lru` admits it at its first use, and
`fading-lfu` at its second, when it is worth more than a row that was used once. So caches of all
sizes evict as many rows per step, and differ by what it takes to find them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from outsize.bench.cache_parts import BOUNDS, RATE, read_and_update
from outsize.bench.timing import cell, time_in_turns
from outsize.kernels.rows.updates import AdagradRule
from outsize.spec import TableSpec
from outsize.stores import CachedStore, LocalStore

_USES = 2  # of a fresh id
_FILLED_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class FullShape:
    """The work of a round.

    Attributes:
        num_rows: Rows of the table; more than there are slots, by the fresh ids of all rounds.
        dim: Width of a row.
        num_ids: Distinct ids per step.
        num_fresh: How many ids are new to each step, and how many rows it evicts.
        slots: Sizes of the caches.
    """

    num_rows: int = 5_000_000
    dim: int = 16
    num_ids: int = 16_384
    num_fresh: int = 320
    slots: tuple[int, ...] = (100_000, 2_500_000)


def measure_full_caches(
    shape: FullShape, device: str, say: Callable[[str], None], *, rounds: int, calls: int
) -> list[dict[str, Any]]:
    """Time rounds of full caches in turns, with two ways of eviction."""
    found = []
    for eviction in ("fading-lfu", "lru"):
        say(f"full caches of {' and '.join(f'{num:,}' for num in shape.slots)} rows, {eviction}")
        found.append(_measure(shape, eviction, device, rounds, calls))
    return found


def _measure(
    shape: FullShape, eviction: str, device: str, rounds: int, calls: int
) -> dict[str, Any]:
    order = torch.randperm(shape.num_rows, generator=torch.Generator().manual_seed(0))
    warmup = 2 * calls
    batches = _batches(shape, order, warmup + rounds * calls, device)
    rule = AdagradRule(RATE, row_wise=True, compiled=True)
    stores: dict[str, CachedStore] = {}
    for num_slots in shape.slots:
        inner = LocalStore([TableSpec("rows", shape.num_rows, shape.dim)], device=device)
        store = CachedStore(inner, num_slots, *BOUNDS, eviction)
        store.bind(rule)
        for ids in order[:num_slots].split(_FILLED_AT_ONCE):
            store.exchange(None, ids.sort().values.to(device))
        stores[str(num_slots)] = store
    steps: dict[str, Callable[[], None]] = {
        name: partial(read_and_update, store, cycle(batches)) for name, store in stores.items()
    }
    for name, store in stores.items():
        for _ in range(warmup):
            steps[name]()
        store.take_counts()
    timings = time_in_turns(steps, rounds=rounds, calls=calls, warmup=0)
    evictions = {}
    for name, store in stores.items():
        counts = store.take_counts()
        assert counts is not None
        evictions[name] = counts.evictions / (rounds * calls)
    first, last = (timings[str(shape.slots[i])].median_s for i in (0, -1))
    return {
        **asdict(shape),
        "eviction": eviction,
        "variants": {name: timing.in_ms() for name, timing in timings.items()},
        "evictions_per_step": evictions,
        "ratio": last / first,
    }


def table_of_parts(results: dict[str, Any], per: str) -> list[str]:
    """The parts of a cache as Markdown: look-ups, caches of several sizes, and full ones.

    Args:
        results: What was measured; older results have no full caches.
        per: What look-ups are counted per.
    """
    lookups, growth = results["lookups"], results["growth"]
    lines = [
        f"Directory: {lookups['million_per_s']:.0f} million look-ups per {per}, of "
        f"ids among {lookups['num_slots']:,} copies ({lookups['bytes_per_slot']:.0f} bytes each)\n",
        f"Milliseconds per step of {growth['num_ids']:,} ids of dim {growth['dim']}, the same for "
        "every size of the cache (median of rounds taken in turns; p10 to p90 in brackets); 0 is "
        "the store without a cache:\n",
        "| rows in the cache | ms per step |",
        "|--:|--:|",
        *(f"| {int(name):,} | {cell(found)} |" for name, found in growth["variants"].items()),
        f"\nThe largest cache takes {growth['ratio']:.2f}× as long as the smallest.\n",
    ]
    return [*lines, _table(results["full"])] if "full" in results else lines


def _table(found: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"Milliseconds per read and update of {found[0]['num_ids']:,} ids of dim {found[0]['dim']} "
        "with caches that are full and evict rows in every step:\n",
        "| rows in the cache | eviction | ms | evictions per step |",
        "|--:|---|--:|--:|",
    ]
    for part in found:
        for name, times in part["variants"].items():
            num = part["evictions_per_step"][name]
            lines.append(f"| {int(name):,} | `{part['eviction']}` | {cell(times)} | {num:.0f} |")
    ratios = " and ".join(f"{part['ratio']:.2f}× with `{part['eviction']}`" for part in found)
    lines.append(f"\nThe time of the largest is that of the smallest {ratios}.\n")
    return "\n".join(lines)


def _batches(shape: FullShape, order: Tensor, num: int, device: str) -> list[Tensor]:
    """Ids of rounds: those that every batch has, and two groups of fresh ones."""
    width = shape.num_fresh
    common = order[: shape.num_ids - _USES * width]
    fresh = order[max(shape.slots) :]
    assert fresh.shape[0] >= (num + _USES) * width, "each fresh id is in two batches only"
    found: list[Tensor] = []
    for step in range(num):
        entering = fresh[step * width : (step + _USES) * width]
        found.append(torch.cat([common, entering]).sort().values.to(device))
    return found
