"""The runs that compare ways of finding negatives for a fine-tuned text encoder, in their order.

Rate and β of each method and batch are chosen by equal trials on one set, by validation MRR@10 on a
seed of their own. The choice holds for other sets and, where a batch had no trials, is that of the
batch that had (`Comparison.like`). Comparisons come one after the other, the most wanted first, so
that a grid that is cut off has all seeds of what it has compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode

IN_BATCH, CACHE, RANKING = "in-batch", "cache, joined with the batch", "CachedMNRL"
TRIAL_SEED = 100
_NEGATIVES: dict[str, dict[str, Any]] = {
    IN_BATCH: {"kind": "in-batch"},
    CACHE: {"kind": "cache", "num_negatives": 4, "refresh": 0.002, "in_batch": True,
            "estimator": "shared-systematic"},
    RANKING: {"kind": "in-batch"},
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        data: The name of the set.
        method: A key of the methods.
        batch: Pairs per step.
        rate: The learning rate.
        beta: The inverse temperature.
        seed: Of dropout and of the order of pairs.
        steps: Steps.
        is_trial: Whether it only chooses rate and β, so that nothing is tested.
        mini_batch: Texts encoded at a time, for `RANKING`.
    """

    data: str
    method: str
    batch: int
    rate: float
    beta: float
    seed: int
    steps: int
    is_trial: bool = False
    mini_batch: int = 0

    @property
    def key(self) -> str:
        """What a record of it is found by; not by steps that follow from a measurement."""
        kind = "trial" if self.is_trial else "final"
        return (
            f"{kind} {self.data} {self.method} {self.batch} {self.rate:g} {self.beta:g} {self.seed}"
        )

    def config(self, model: Path, max_tokens: int, device: str) -> RunConfig:
        """The run file; validated at half of the steps, if it is no trial, and at the end."""
        is_cuda = device.startswith("cuda")
        tree = {
            "seed": self.seed,
            "data": {"kind": "text-pairs", "path": ["tokens"], "query": "query", "item": "item"},
            "model": {"kind": "sentence-transformers", "path": str(model),
                      "max_tokens": max_tokens},
            "optimizer": {"learning_rate": self.rate},
            "negatives": {**_NEGATIVES[self.method], "beta": self.beta},
            "retrieval": {"judge": "mrr@10", "mrr_at": [10], "recall_at": [10], "ndcg_at": [10]},
            "schedule": {"shape": "linear", "warmup_steps": max(1, self.steps // 15)},
            "train": {"batch_size": self.batch, "epochs": 100_000, "steps": self.steps,
                      "validate_every": max(1, self.steps // (1 if self.is_trial else 2)),
                      "log_every": self.steps + 1, "early_stop": False, "device": device,
                      "precision": "bfloat16" if is_cuda else "float32"},
        }  # fmt: skip
        return decode(RunConfig, tree, self.key)


@dataclass(frozen=True)
class Comparison:
    """A method at a batch on a set.

    Attributes:
        data: The name of the set.
        method: A key of the methods.
        batch: Pairs per step.
        seeds: The seeds that are trained.
        like: The batch whose trials, on the first set, chose rate and β.
    """

    data: str
    method: str
    batch: int
    seeds: tuple[int, ...]
    like: int


@dataclass(frozen=True)
class Plan:
    """All runs.

    Attributes:
        first: The set of the trials.
        second: The other set.
        small: The small batch.
        large: The large batch; `RANKING` takes four times as many pairs.
        steps: Steps of a run.
        trial_steps: Steps of a trial.
        rates: Learning rates that are tried.
        betas: Values of β that are tried.
        seeds: How many seeds.
    """

    first: str
    second: str
    small: int = 32
    large: int = 128
    steps: int = 1200
    trial_steps: int = 300
    rates: tuple[float, ...] = (3e-5, 1e-4)
    betas: tuple[float, ...] = (20.0, 40.0)
    seeds: int = 3

    def comparisons(self) -> list[Comparison]:
        """What is compared, the most wanted first."""
        seeds, small, large = tuple(range(self.seeds)), self.small, self.large
        of_ranking = 4 * large
        return [
            Comparison(self.first, CACHE, large, seeds, large),
            Comparison(self.first, CACHE, small, seeds, small),
            Comparison(self.first, IN_BATCH, large, seeds, large),
            Comparison(self.first, IN_BATCH, small, seeds, small),
            Comparison(self.first, RANKING, of_ranking, seeds, of_ranking),
            Comparison(self.second, CACHE, large, seeds, large),
            Comparison(self.second, IN_BATCH, large, seeds, large),
        ]

    def widest(self) -> list[Comparison]:
        """One seed at four times the large batch, after everything else."""
        batch = 4 * self.large
        return [
            Comparison(self.first, method, batch, (0,), self.large) for method in (CACHE, IN_BATCH)
        ]

    def trials(self, compared: Comparison) -> list[Run]:
        """The trials that choose rate and β of a comparison, before `fitted`."""
        return [
            Run(self.first, compared.method, compared.like, rate, beta, TRIAL_SEED,
                self.trial_steps, is_trial=True)
            for rate in self.rates
            for beta in self.betas
        ]  # fmt: skip

    def chosen(self, compared: Comparison, done: Mapping[str, Any]) -> Run | None:
        """The best trial; `None` while one is missing."""
        trials = self.trials(compared)
        if any(run.key not in done for run in trials):
            return None
        return max(trials, key=lambda run: float(done[run.key]["validation"]["mrr@10"]))

    def ready(self, done: Mapping[str, Any]) -> Iterator[Run]:
        """The runs that are not done and can begin, the most wanted first."""
        for one in [*self.comparisons(), *self.widest()]:
            if one.data == self.first and one.like == one.batch:
                yield from (run for run in self.trials(one) if run.key not in done)
            for seed in one.seeds:
                run = self.final(one, seed, done)
                if run is not None and run.key not in done:
                    yield run

    def final(self, compared: Comparison, seed: int, done: Mapping[str, Any]) -> Run | None:
        """The run of a seed; `None` while the trials are not done."""
        best = self.chosen(compared, done)
        if best is None:
            return None
        return Run(
            compared.data, compared.method, compared.batch, best.rate, best.beta, seed, self.steps
        )


def fitted(run: Run, timing: Mapping[str, Any]) -> Run | None:
    """A run of `RANKING` as long as the cache at a quarter of its batch takes, in its memory.

    Of the mini-batches whose steps need no more memory than those of the cache, the fastest is
    taken; the number of steps is then what fits in the time of the cache's steps. Without these
    times there is no such run.

    Args:
        run: Any run; others than of `RANKING` are returned unchanged.
        timing: Name → `ms` and `peak_bytes` of a step, as measured alone: see `timed_runs`.
    """
    if run.method != RANKING:
        return run
    cache = timing.get(timed_name(CACHE, run.batch // 4))
    known = {
        size: timing[name]
        for size in mini_batches(run.batch)
        if (name := timed_name(RANKING, run.batch, size)) in timing
    }
    if cache is None or not known:
        return None
    fitting = {size: at for size, at in known.items() if at["peak_bytes"] <= cache["peak_bytes"]}
    size = min(fitting or known, key=lambda one: float(known[one]["ms"]))
    steps = max(2, int(run.steps * cache["ms"] / known[size]["ms"]))
    return replace(run, steps=steps, mini_batch=size)


def mini_batches(batch: int) -> tuple[int, ...]:
    """The mini-batches of `RANKING` that are timed."""
    return (batch // 4, batch // 2, batch)


def timed_name(method: str, batch: int, mini_batch: int = 0) -> str:
    """What the measured time of a method is found by."""
    return f"{method} {batch}" + (f" in {mini_batch}" if mini_batch else "")


def timed_runs(plan: Plan) -> dict[str, Run]:
    """The runs whose steps are timed alone, by name."""
    rate, beta = plan.rates[0], plan.betas[0]

    def run(method: str, batch: int, mini_batch: int = 0) -> Run:
        steps = 1_000_000  # only the first few are taken
        return Run(plan.first, method, batch, rate, beta, 0, steps, True, mini_batch)

    runs = [
        run(method, batch) for batch in (plan.small, plan.large) for method in (IN_BATCH, CACHE)
    ]
    of_ranking = 4 * plan.large
    runs += [run(RANKING, of_ranking, size) for size in mini_batches(of_ranking)]
    return {timed_name(one.method, one.batch, one.mini_batch): one for one in runs}
