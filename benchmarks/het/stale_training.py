"""Least squares over rows of a store, trained by ranks that read stale copies, with a full trace.

The store is the real one (`CachedStore` over `ShardedStore`), with ranks as threads. In addition to
the trained numbers, every row has one column per rank, to which that rank's updates add 1. So a
read shows how many updates of each rank it includes, whatever happened to them on the way.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Generator, Tensor

from outsize.contracts import RowStore, RowUpdate
from outsize.kernels.rows.updates import SGDRule
from outsize.ranks.thread_ranks import ThreadRanks, run_as_ranks
from outsize.spec import Init, TableSpec
from outsize.stores import CachedStore, LocalStore, ShardedStore
from outsize.stores.merging import average_over_workers

Result = TypeVar("Result")

_LARGEST_EIGENVALUE = 4.0  # L; not 1, so that L and L² differ


@dataclass(frozen=True)
class Problem:
    """f(x) = Σ_e ‖Σ_i a_ei x_i − y_e‖² / 2n: convex, and each example touches a few rows.

    Attributes:
        features: a, with few nonzero values per line.
        targets: y.
        hessian: aᵀa / n.
        linear: aᵀy / n.
        smoothness: L, the largest eigenvalue of the Hessian.
        least: The infimum of f.
    """

    features: Float64[Tensor, "n rows"]
    targets: Float64[Tensor, "n dim"]
    hessian: Float64[Tensor, "rows rows"]
    linear: Float64[Tensor, "rows dim"]
    smoothness: float
    least: float

    def loss(self, rows: Float64[Tensor, "rows dim"]) -> float:
        """The value of f."""
        residual = self.features @ rows - self.targets
        return residual.square().sum().item() / (2 * self.targets.shape[0])

    def gradient(
        self, rows: Float64[Tensor, "*many rows dim"]
    ) -> Float64[Tensor, "*many rows dim"]:
        """∇f, of one x or of many at once."""
        return self.hessian @ rows - self.linear


def make_problem(num_rows: int, num_examples: int, dim: int = 2, seed: int = 0) -> Problem:
    """Examples of four features each with Zipf popularity (1/rank), and noisy targets.

    Args:
        num_rows: Number of rows (M).
        num_examples: Number of examples (n).
        dim: Numbers per row.
        seed: Seed of the draws.
    """
    generator = Generator().manual_seed(seed)
    popularity = 1 / torch.arange(1, num_rows + 1, dtype=torch.float64)
    chosen = torch.multinomial(popularity.expand(num_examples, -1), 4, generator=generator)
    weights = torch.randn(chosen.shape, dtype=torch.float64, generator=generator)
    features = torch.zeros(num_examples, num_rows, dtype=torch.float64)
    features.scatter_(1, chosen, weights)
    greatest = torch.linalg.eigvalsh(features.T @ features / num_examples)[-1]
    features *= (_LARGEST_EIGENVALUE / greatest).sqrt()
    truth = torch.randn(num_rows, dim, dtype=torch.float64, generator=generator)
    noise = torch.randn(num_examples, dim, dtype=torch.float64, generator=generator)
    targets = features @ truth + noise
    hessian, linear = features.T @ features / num_examples, features.T @ targets / num_examples
    best = torch.linalg.lstsq(features, targets, driver="gelsd").solution
    least = (features @ best - targets).square().sum().item() / (2 * num_examples)
    smoothness = torch.linalg.eigvalsh(hessian)[-1].item()
    return Problem(features, targets, hessian, linear, smoothness, least)


@dataclass(frozen=True)
class Training:
    """Settings of a training run.

    Attributes:
        rounds: T.
        learning_rate: η.
        staleness: s, for reads and for writes; `None` for no cache.
        num_ranks: N.
        batch_size: Examples per rank and round.
        seed: Seed of the batches.
        probes: Rounds before which every rank records what it would read.
    """

    rounds: int
    learning_rate: float
    staleness: int | None
    num_ranks: int = 4
    batch_size: int = 8
    seed: int = 0
    probes: Collection[int] = ()


@dataclass(frozen=True)
class Trace:
    """Trace of a training run.

    Attributes:
        reference: x(t) for t = 0 … T: rows with all updates of all ranks before round t.
        gradients: Gⁿ(t); 0 for rows that a batch does not touch.
        probed: Rounds in which `reads` were recorded.
        reads: x^j(t) in those rounds: what rank j would read if its batch touched all rows.
        missed: Number of updates of each rank before round t that those reads do not include.
    """

    reference: Float64[Tensor, "rounds_and_1 rows dim"]
    gradients: Float64[Tensor, "rounds ranks rows dim"]
    probed: list[int]
    reads: Float64[Tensor, "probes ranks rows dim"]
    missed: Int64[Tensor, "probes ranks rows ranks"]


def train(problem: Problem, how: Training) -> Trace:
    """Train on all ranks at once; afterwards replay all updates without delay for reference."""
    dim, num_rows = problem.targets.shape[1], problem.features.shape[1]
    spec = TableSpec("rows", num_rows, dim + how.num_ranks, Init("zeros"))
    found = run_in_turns(how.num_ranks, lambda ranks: _train_on(ranks, problem, how, spec))
    rounds = list(zip(*(updates for updates, _ in found), strict=True))
    reference = _replay(rounds, spec, how)
    gradients = torch.zeros(how.rounds, how.num_ranks, num_rows, dim, dtype=torch.float64)
    for at, updates in enumerate(rounds):
        for rank, update in enumerate(updates):
            gradients[at, rank, update.ids] = update.gradients[0][:, :dim].double()
    probed = sorted(how.probes)
    reads = torch.stack([seen for _, seen in found], dim=1)
    missed = (reference[probed].unsqueeze(1) - reads)[..., dim:].round().long()
    return Trace(reference[..., :dim], gradients, probed, reads[..., :dim], missed)


def run_in_turns(size: int, work: Callable[[ThreadRanks], Result]) -> list[Result]:
    """Like `run_as_ranks`, but only one rank runs at a time; the others wait for messages or turns.

    Threads that contend for Python's interpreter lock at every small operation are several times
    slower than threads that take turns.
    """
    turn = threading.Lock()

    def taking_turns(ranks: ThreadRanks) -> Result:
        with turn:
            return work(_TurnRanks(ranks, turn))

    return run_as_ranks(size, taking_turns)


class _TurnRanks(ThreadRanks):
    """Ranks that release the turn while they wait for messages."""

    def __init__(self, ranks: ThreadRanks, turn: threading.Lock) -> None:
        self.rank, self.size = ranks.rank, ranks.size
        self._ranks = ranks
        self._turn = turn

    def _swap(self, messages: list[Tensor]) -> list[Tensor]:
        self._turn.release()
        try:
            return self._ranks._swap(messages)
        finally:
            self._turn.acquire()


def _train_on(
    ranks: ThreadRanks, problem: Problem, how: Training, spec: TableSpec
) -> tuple[list[RowUpdate], Float64[Tensor, "probes rows width"]]:
    """Train on one rank; its updates, and what it would have read in each probed round."""
    sharded = ShardedStore([spec], group=ranks)
    bound = how.staleness
    store = sharded if bound is None else CachedStore(sharded, spec.num_rows, bound, bound)
    store.bind(SGDRule(how.learning_rate))
    features, targets = problem.features.float(), problem.targets.float()
    generator = Generator().manual_seed(1000 * how.seed + ranks.rank)
    updates: list[RowUpdate] = []
    reads = torch.empty(len(how.probes), spec.num_rows, spec.dim, dtype=torch.float64)
    num_reads = 0
    for at in range(how.rounds):
        if at in how.probes:
            reads[num_reads] = _read_all(store, ranks)
            num_reads += 1
        chosen = torch.randint(features.shape[0], (how.batch_size,), generator=generator)
        ids = (features[chosen] != 0).any(dim=0).nonzero().flatten()
        lines = features[chosen][:, ids]
        rows = store.exchange(None, ids).rows[0]
        residual = lines @ rows[:, : targets.shape[1]] - targets[chosen]
        counts = torch.zeros(ids.shape[0], how.num_ranks)
        counts[:, ranks.rank] = -how.num_ranks / how.learning_rate
        gradients = torch.cat([lines.T @ residual / how.batch_size, counts], dim=1)
        updates.append(RowUpdate(ids, (gradients,), torch.ones_like(ids)))
        store.submit(updates[-1])
    return updates, reads


def _read_all(store: RowStore, ranks: ThreadRanks) -> Float32[Tensor, "rows width"]:
    """What the next round would read for all rows, from a copy of the store: nothing changes."""
    twin = copy.deepcopy(store, {id(ranks): ranks})
    found: Tensor = twin.exchange(None, torch.arange(store.layout.num_rows)).rows[0]
    return found


def _replay(
    rounds: Sequence[tuple[RowUpdate, ...]], spec: TableSpec, how: Training
) -> Float64[Tensor, "rounds_and_1 rows width"]:
    """The rows after every round if no update waited: x(t + 1) = x(t) − η/N Σₙ Gⁿ(t)."""
    store, rule = LocalStore([spec]), SGDRule(how.learning_rate)
    store.bind(rule)
    found = [store.rows(0).double()]
    for updates in rounds:
        averaged = average_over_workers(updates, how.num_ranks, store.layout, rule)
        store.submit(averaged)
        found.append(store.rows(0).double())
    return torch.stack(found)
