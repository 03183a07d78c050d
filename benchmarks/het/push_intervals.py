"""Iterations between pushes of a row that batches touch with a known probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from benchmarks.het.stale_training import run_in_turns
from outsize.contracts import RowUpdate
from outsize.kernels.rows.updates import SGDRule
from outsize.ranks.thread_ranks import ThreadRanks
from outsize.spec import Init, TableSpec
from outsize.stores import CachedStore, ShardedStore


def push_intervals(
    staleness: int,
    probabilities: Sequence[float],
    rows_each: int,
    num_pushes: int,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Count the iterations between pushes of rows that batches touch with given probabilities.

    Each of two ranks trains the rows that the other owns, and sees pushes in the clocks of its own
    rows. A fixed number of pushes per row is counted: all pushes within a fixed time would favour
    the short intervals.

    Args:
        staleness: s_w.
        probabilities: p of each kind of rows.
        rows_each: Rows per kind; even.
        num_pushes: Pushes counted per row.
        seed: Seed of the batches.
    """
    chance = torch.tensor(probabilities, dtype=torch.float64).repeat_interleave(rows_each // 2)
    needed, least = num_pushes * (staleness + 1), min(probabilities)
    rounds = int((needed + 6 * math.sqrt(needed * (1 - least)) + 6) / least)
    spec = TableSpec("rows", 2 * chance.shape[0], 4, Init("zeros"))

    def clocks_of(ranks: ThreadRanks) -> Tensor:
        store = CachedStore(ShardedStore([spec], group=ranks), spec.num_rows, 0, staleness)
        store.bind(SGDRule(1.0))
        generator = Generator().manual_seed(1000 * seed + ranks.rank)
        seen = []
        for _ in range(rounds):
            touched = torch.rand(chance.shape, dtype=chance.dtype, generator=generator) < chance
            ids = 2 * touched.nonzero().flatten() + 1 - ranks.rank
            rows = store.exchange(None, ids).rows[0]
            store.submit(RowUpdate(ids, (torch.zeros_like(rows),), torch.ones_like(ids)))
            seen.append(store.parts()[0].tensors["clocks"].clone())
        return torch.stack(seen)

    moved = torch.cat([clocks.diff(dim=0) for clocks in run_in_turns(2, clocks_of)], dim=1)
    found: list[dict[str, Any]] = []
    for p in probabilities:
        lines = moved[:, (chance.repeat(2) == p)].T
        # Line t of `moved` is the change in the exchange of round t + 1, after t + 1 batches.
        times = [line.nonzero().flatten()[:num_pushes] + 1 for line in lines]
        assert all(len(each) == num_pushes for each in times), "there are rounds enough"
        zero = torch.zeros(1, dtype=torch.int64)
        lengths = torch.stack([each.diff(prepend=zero) for each in times]).double().flatten()
        deviation = math.sqrt((staleness + 1) * (1 - p)) / p
        found.append(
            {
                "s": staleness,
                "p": p,
                "count": lengths.numel(),
                "mean": lengths.mean().item(),
                "deviation": lengths.std().item(),
                "expected": (staleness + 1) / p,
                "expected_deviation": deviation,
                "error": deviation / math.sqrt(lengths.numel()),
                "ticks": sorted({int(ticks) for ticks in lines.unique()} - {0}),
            }
        )
    return found
