"""Training with a negative cache beside training with the exact softmax (Theorems 3 and 5).

With η of the order 1/√T, Theorem 3 states

    (1/T) Σ E‖∇L(θₜ)‖² = O(1/√T) + O((1/ρ − 1)² / T):

the term of staleness falls faster than the term of SGD. The former is the mean squared bias, which
is measured here exactly. Theorem 5 adds the squared bias of a sampled cache (Lemma 4), which does
not fall with T. The constants of both are too large to be measured: their β⁶ alone is 6 · 10⁷ at
β = 20.

All runs of a group start from the same model, see the same batches, and take turns.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from benchmarks.negatives.small_towers import DIM, Pairs, TwoTowers, expected_gradient
from outsize.negatives import (
    CorpusFeed,
    ExactLoss,
    Feed,
    NegativeCache,
    NegativeCacheLoss,
    NegativesLoss,
    StreamFeed,
    Temperature,
    Upkeep,
)

BETA = 20.0
_BATCH = 32


@dataclass(frozen=True)
class Way:
    """One way of training: exact, or with a cache of a given size and refresh rate.

    Attributes:
        refresh: ρ; `None` for the exact softmax.
        num_held: Items in a cache that is a moving uniform sample; `None` for the whole corpus.
        num_new: Random items per step that enter such a cache.
        weighted: Count each of its items 1/α times.
        num_draws: Draws per query.
    """

    refresh: float | None
    num_held: int | None = None
    num_new: int = 64
    weighted: bool = True
    num_draws: int = 1

    @property
    def name(self) -> str:
        """Its name in a table."""
        if self.refresh is None:
            return "exact"
        parts = [f"ρ = {self.refresh:g}"]
        if self.num_held is not None:
            parts.append(f"{self.num_held:,} items" + ("" if self.weighted else " without 1/α"))
        if self.num_draws > 1:
            parts.append(f"{self.num_draws} draws")
        return ", ".join(parts)

    def build(self, towers: TwoTowers, seed: int) -> NegativesLoss:
        """The loss of a run that trains these towers this way."""
        source = towers.source()
        if self.refresh is None:
            return ExactLoss(source, Temperature(BETA))
        feed: Feed = CorpusFeed(source)
        if self.num_held is not None:
            feed = StreamFeed(source, self.num_new, seed)
        cache = NegativeCache(
            self.num_held or source.num_items,
            DIM,
            {"id": ((), torch.int64)},
            "float32",
            corpus_size=source.num_items if self.num_held and self.weighted else None,
            seed=seed,
        )
        upkeep = Upkeep(feed, self.refresh)
        return NegativeCacheLoss(cache, source.encode, BETA, self.num_draws, upkeep=upkeep)


class Descent:
    """One training run.

    Args:
        way: How to train.
        start: The model it starts from.
        batches: Queries of each step.
        learning_rate: η.
        seed: Seed of draws and streams.
    """

    def __init__(
        self, way: Way, start: TwoTowers, batches: Tensor, learning_rate: float, seed: int
    ) -> None:
        self.way = way
        self.learning_rate = learning_rate
        self.towers = copy.deepcopy(start)
        self.loss = way.build(self.towers, seed)
        self.loss.begin()
        self._batches = batches
        self._optimizer = torch.optim.SGD(self.towers.parameters(), learning_rate)
        self._seconds: list[tuple[int, float]] = []
        self.num_steps = 0
        self.probes: list[dict[str, float]] = []

    def advance(self, steps: int) -> None:
        """Take `steps` steps, and record their time."""
        started = time.perf_counter()
        for _ in range(steps):
            ids = self._batches[self.num_steps]
            keys = self.towers.pairs.positives[ids]
            report = self.loss(self.towers.encode_queries(ids), {"id": keys}, keys)
            self._optimizer.zero_grad()
            report.loss.backward()
            self._optimizer.step()
            self.loss.commit(report)
            self.num_steps += 1
        self._seconds.append((steps, time.perf_counter() - started))

    @property
    def step_s(self) -> float:
        """Seconds per step, over the last call of `advance`."""
        steps, seconds = self._seconds[-1]
        return seconds / steps

    def probe(self) -> None:
        """Measure the exact gradient, and the bias of the expected gradient of the cache."""
        exact = expected_gradient(self.towers, BETA)
        found = {
            "step": float(self.num_steps),
            "gradient": exact.gradient.square().sum().item(),
            "loss": exact.loss,
            "bias": 0.0,
            "age": 0.0,
        }
        if isinstance(self.loss, NegativeCacheLoss):
            assert isinstance(self.loss.cache, NegativeCache)  # one process, one cache
            cached = expected_gradient(self.towers, BETA, self.loss.cache)
            found["bias"] = (cached.gradient - exact.gradient).square().sum().item()
            found["age"] = self.loss.cache.ages().double().mean().item()
        self.probes.append(found)


def train_in_turns(
    ways: Sequence[Way], pairs: Pairs, steps: int, rate: float, seed: int
) -> list[Descent]:
    """Train in each way from the same start with the same batches; probe after 0, 1, 2, 4, … steps.

    Args:
        ways: How to train.
        pairs: Queries and items.
        steps: T.
        rate: η = rate/√T.
        seed: Seed of the start, batches and draws.
    """
    generator = Generator().manual_seed(seed)
    start = TwoTowers(pairs, seed)
    batches = torch.randint(len(pairs.queries), (steps, _BATCH), generator=generator)
    runs = [Descent(way, start, batches, rate / steps**0.5, seed) for way in ways]
    for run in runs:
        run.probe()
    while runs[0].num_steps < steps:
        more = max(1, min(runs[0].num_steps, steps - runs[0].num_steps))
        for run in runs:
            run.advance(more)
            run.probe()
    return runs
