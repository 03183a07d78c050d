"""Hit rates of the eviction policies on Zipf traces, with and without drift.

    OMP_NUM_THREADS=1 python -m benchmarks.het.eviction --out benchmarks/results

Each step reads the unique rows of a batch of 26 features with 38,462 rows each (a million rows).
Popular rows are scattered over the ids of each feature. A cache of 100,000 slots is simulated for
every policy in `EVICTION`, and for fading LFU with other half-lives, all on the same trace. With
drift, a share of the top tenth of each feature is exchanged at regular intervals with rows drawn
uniformly from the tail.

Two oracles are measured as well. The best static set holds the rows with the highest true
popularity at each step, which no policy knows and which follows every drift. The most used rows so
far, by exact counts of all rows, are the best estimate of that set where nothing drifts.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.runner import typed_command
from outsize.bench.runner import results_page, write_results
from outsize.data.zipf import Zipf
from outsize.reporting.environment import environment
from outsize.stores.eviction import EVICTION
from outsize.stores.eviction.fading_lfu import FadingLFU
from outsize.stores.eviction.policy import EvictionPolicy

NUM_FEATURES = 26
SHARE_THAT_DRIFTS = 0.02
STATIC = "best static set"
MOST_USED = "most used so far"
STEPS_PER_COUNT = 20  # finding the most used of a million rows is slow
POLICIES: dict[str, Callable[[int], EvictionPolicy]] = {
    **EVICTION,
    "fading-lfu, half-life 8": lambda num_slots: FadingLFU(num_slots, half_life=8.0),
    "fading-lfu, half-life 32": lambda num_slots: FadingLFU(num_slots, half_life=32.0),
}


@dataclass(frozen=True)
class Setting:
    """One trace: its skew, examples per step, number of steps, and steps between drifts."""

    skew: float
    batch_size: int
    num_steps: int
    steps_per_drift: int | None

    @property
    def drift(self) -> str:
        """How often the trace drifts, in words."""
        return "none" if self.steps_per_drift is None else f"every {self.steps_per_drift} steps"


class Trace:
    """Unique store ids of each step, and how many of them are among the most popular."""

    def __init__(self, setting: Setting, rows_per_feature: int, num_slots: int, seed: int) -> None:
        self.setting = setting
        self.generator = torch.Generator().manual_seed(seed)
        self.zipf = Zipf([rows_per_feature] * NUM_FEATURES, setting.skew)
        self.rows_per_feature = rows_per_feature
        self.num_popular = num_slots // NUM_FEATURES  # all features are equally popular
        offsets = torch.arange(NUM_FEATURES) * rows_per_feature
        self.id_of_rank = torch.stack([self._shuffle(rows_per_feature) + at for at in offsets])

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        """Ids of a step, ascending, and how many of them the best static set holds."""
        for step in range(self.setting.num_steps):
            every = self.setting.steps_per_drift
            if every is not None and step and step % every == 0:
                self._drift()
            shape = (self.setting.batch_size, NUM_FEATURES)
            uniform = torch.rand(shape, generator=self.generator, dtype=torch.float64)
            ranks = torch.unique(
                self.zipf.ranks(uniform) + torch.arange(NUM_FEATURES) * self.rows_per_feature
            )
            popular = int((ranks % self.rows_per_feature < self.num_popular).sum())
            yield self.id_of_rank.flatten()[ranks].sort().values, popular

    def _drift(self) -> None:
        top = self.rows_per_feature // 10
        num = round(SHARE_THAT_DRIFTS * top)
        for ids in self.id_of_rank:
            falling = self._shuffle(top)[:num]
            rising = self._shuffle(self.rows_per_feature - top)[:num] + top
            ids[falling], ids[rising] = ids[rising].clone(), ids[falling].clone()

    def _shuffle(self, num: int) -> Tensor:
        return torch.randperm(num, generator=self.generator)


class Simulation:
    """A cache without rows: the slot of each id, and the hits and evictions of a policy."""

    def __init__(self, policy: EvictionPolicy, num_rows: int) -> None:
        self.policy = policy
        self.slot_of = torch.full((num_rows,), -1)
        self.id_in = torch.full((policy.num_slots,), -1)
        self.hits: list[int] = []
        self.evictions: list[int] = []
        self.elapsed_s: list[float] = []

    def step(self, ids: Tensor) -> None:
        """One training step."""
        slots = self.slot_of[ids]
        missing = ids[slots < 0]
        evictable = self.id_in >= 0
        free = (~evictable).nonzero().flatten()
        evictable[slots[slots >= 0]] = False
        started = time.perf_counter()
        self.policy.used(ids, slots)
        admit, victims = self.policy.choose(missing, free.shape[0], evictable)
        elapsed_s = time.perf_counter() - started
        entering, leaving = missing[admit], self.id_in[victims]
        places = torch.cat([free, victims])[: entering.shape[0]]
        started = time.perf_counter()
        self.policy.removed(leaving, victims)
        self.policy.admitted(entering, places)
        self.elapsed_s.append(elapsed_s + time.perf_counter() - started)
        self.slot_of[leaving] = -1
        self.slot_of[entering] = places
        self.id_in[places] = entering
        self.hits.append(ids.shape[0] - missing.shape[0])
        self.evictions.append(victims.shape[0])


class MostUsed:
    """A cache of the rows with the highest exact counts, recomputed every 20 steps."""

    def __init__(self, num_slots: int, num_rows: int) -> None:
        self.num_slots = num_slots
        self.counts = torch.zeros(num_rows, dtype=torch.int32)
        self.cached = torch.zeros(num_rows, dtype=torch.bool)
        self.hits: list[int] = []

    def step(self, ids: Tensor) -> None:
        """One training step."""
        if len(self.hits) % STEPS_PER_COUNT == 0:
            self.cached.zero_()
            self.cached[self.counts.topk(self.num_slots, sorted=False).indices] = True
        self.hits.append(int(self.cached[ids].sum()))
        self.counts[ids] += 1


def run(setting: Setting, num_slots: int, rows_per_feature: int, seed: int) -> list[dict[str, Any]]:
    """All policies on one trace."""
    num_rows = NUM_FEATURES * rows_per_feature
    simulations = {name: Simulation(make(num_slots), num_rows) for name, make in POLICIES.items()}
    most_used = MostUsed(num_slots, num_rows)
    reads: list[int] = []
    popular: list[int] = []
    for ids, num_popular in Trace(setting, rows_per_feature, num_slots, seed):
        reads.append(ids.shape[0])
        popular.append(num_popular)
        most_used.step(ids)
        for simulation in simulations.values():
            simulation.step(ids)
    half = setting.num_steps // 2
    common = {
        "skew": setting.skew,
        "batch_size": setting.batch_size,
        "drift": setting.drift,
        "steps": setting.num_steps,
        "reads_per_step": sum(reads) / len(reads),
    }

    def rates(hits: list[int]) -> dict[str, float]:
        return {"second_half": sum(hits[half:]) / sum(reads[half:]), "all": sum(hits) / sum(reads)}

    rows = [
        {**common, "policy": STATIC, **rates(popular)},
        {**common, "policy": MOST_USED, **rates(most_used.hits)},
    ]
    for name, simulation in simulations.items():
        times_ms = sorted(1e3 * value for value in simulation.elapsed_s[half:])
        rows.append(
            {
                **common,
                "policy": name,
                **rates(simulation.hits),
                "evictions_per_1000": 1e3 * sum(simulation.evictions[half:]) / sum(reads[half:]),
                "ms_p10": times_ms[len(times_ms) // 10],
                "ms_median": statistics.median(times_ms),
                "bytes_per_slot": sum(b.nbytes for b in simulation.policy.buffers()) / num_slots,
            }
        )
    return rows


def table(rows: list[dict[str, Any]], num_slots: int, rows_per_feature: int) -> str:
    """The results as Markdown."""
    lines = [
        f"{num_slots:,} slots, {NUM_FEATURES} features × {rows_per_feature:,} rows, Zipf, one "
        "trace per setting. Hit rate: share of the unique rows of a step that are in the cache, "
        "over the second half of the run and over all of it. "
        f"Drift: {SHARE_THAT_DRIFTS:.0%} of the top tenth of each feature are exchanged with rows "
        "of the tail. Evictions per 1,000 unique reads (second half). Milliseconds per step for "
        "all calls of the policy: median and p10, on a shared machine.",
    ]
    settings = dict.fromkeys((r["skew"], r["batch_size"], r["drift"]) for r in rows)
    for key in settings:
        cells = [r for r in rows if (r["skew"], r["batch_size"], r["drift"]) == key]
        skew, batch_size, drift = key
        size = (
            f"{cells[0]['steps']:,} steps, {cells[0]['reads_per_step']:,.0f} unique reads per step."
        )
        lines += [
            f"\n## Skew {skew}, batch {batch_size:,}, drift {drift}\n",
            f"{size}\n",
            "| policy | hit rate | all steps | evictions | ms (p10) | bytes per slot |",
            "|---|--:|--:|--:|--:|--:|",
        ]
        for cell in cells:
            rest = " | | |"
            if cell["policy"] in POLICIES:
                rest = (
                    f" {cell['evictions_per_1000']:.0f} | {cell['ms_median']:.2f} "
                    f"({cell['ms_p10']:.2f}) | {cell['bytes_per_slot']:.0f} |"
                )
            lines.append(
                f"| {cell['policy']} | {cell['second_half']:.4f} | {cell['all']:.4f} |{rest}"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulate every policy on every trace; print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows and steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for eviction-cpu.md and .json")
    arguments = parser.parse_args()
    scale = 10 if arguments.quick else 1
    num_slots, rows_per_feature = 100_000 // scale, 38_462 // scale
    rows: list[dict[str, Any]] = []
    for skew in (1.05, 1.22):
        for batch_size, num_steps in ((128, 2000), (1024, 600)):
            for steps_per_drift in (None, 200, 20):
                setting = Setting(skew, batch_size, num_steps // scale, steps_per_drift)
                rows += run(setting, num_slots, rows_per_feature, arguments.seed)
    command = typed_command("benchmarks.het.eviction")
    results = {"command": command, "environment": environment(), "rows": rows}
    page = results_page("Eviction policies", results, table(rows, num_slots, rows_per_feature))
    print(page)
    if arguments.out is not None:
        write_results(arguments.out / "eviction-cpu", results, page)


if __name__ == "__main__":
    main()
