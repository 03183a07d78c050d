"""What HET's appendix (VLDB 2022) proves about bounded staleness, beside what the stores do.

Ranks train a least-squares problem, whose examples touch a few rows each, with the real cache and
both bounds equal to s. Three statements are measured:

- Lemma 2: s updates of a row that is in a batch with probability p take about s/p iterations. A
  push fires when more than s ticks wait, so there are (s + 1)/p iterations between pushes here, and
  their number has a negative binomial distribution.
- Lemma 3: E‖x(t) − x^j(t)‖² ≤ 4 s² η² M² B², for x(t) with all updates of rounds before t and
  x^j(t) as worker j reads it. It is compared with a bound from counting: a read misses at most
  s_r + (N − 1) s_w = N s updates of a row, each of at most η/N · B_i, so the squared distance is at
  most Σ_i (η s B_i)², 4M times less even if all B_i are equal. In fact a read misses at most
  (N − 1) s updates: an owner's own updates never wait, so the owner misses at most (N − 1) s_w, and
  any other reader at most s_r + (N − 2) s_w.
- Corollary 1: with η = 1/(L√T),

      (1/T) Σ_t E‖∇f(x(t))‖² ≤ [2L (f(x₀) − f_inf) + M²B²]/√T + 4 s² M²B²/T.

  It is compared with the inequality in the proof before two of its terms are bounded, with measured
  means: 2 (f(x₀) − f_inf)/(ηT) + ηL · mean ‖Σₙ Gⁿ/N‖² + L² · mean ‖x(t) − x^j(t)‖².

B² is the largest ‖G_i‖² of any row in any batch of a run, which no expectation exceeds. The proof
of Theorem 1 bounds ‖∇f(x) − ∇f(x^j)‖² by L ‖x − x^j‖²; L-Lipschitz gradients give L² instead, which
is checked here, with L = 4 so that the two differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from benchmarks.het.push_intervals import push_intervals
from benchmarks.het.stale_training import Problem, Trace, Training, make_problem, train
from benchmarks.runner import run_command
from benchmarks.slopes import slope_of_logs
from outsize.bench import Benchmark

ABOUT = "training with bounded staleness against Lemmas 2 and 3 and Corollary 1 of HET"
_NUM_RANKS = 4


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure all three statements."""
    num_rows, num_examples = (16, 128) if quick else (64, 1024)
    problem = make_problem(num_rows, num_examples)
    intervals: list[dict[str, Any]] = []
    for staleness in (0, 3) if quick else (0, 3, 10, 30):
        say(f"iterations between pushes, s = {staleness}")
        settings = ((0.5, 0.9), 32, 2) if quick else ((0.1, 0.3, 0.9), 64, 4)
        intervals += push_intervals(staleness, *settings)
    distances: list[dict[str, Any]] = []
    for staleness in (0, 3) if quick else (0, 1, 3, 10, 30):
        say(f"distance of reads from writes, s = {staleness}")
        rounds = 20 if quick else 256
        # Popular rows are pushed every s + 1 rounds; probes at its multiples would all be alike.
        how = _training(problem, rounds, staleness, 0, range(0, rounds, 3))
        distances.append(distance_row(problem, how, train(problem, how)))
    gradients: list[dict[str, Any]] = []
    seeds = {8: 1, 32: 1} if quick else {64: 4, 256: 2, 1024: 1, 4096: 1}
    for staleness in (0, 10) if quick else (0, 10, 100):
        for rounds, num_seeds in seeds.items():
            say(f"gradients, s = {staleness}, T = {rounds:,}")
            probes = range(0, rounds, rounds // (8 if quick else 32))
            plans = [
                _training(problem, rounds, staleness, seed, probes) for seed in range(num_seeds)
            ]
            gradients.append(gradient_row(problem, [(how, train(problem, how)) for how in plans]))
    return {
        "problem": {"M": num_rows, "N": _NUM_RANKS, "L": problem.smoothness, "n": num_examples},
        "intervals": intervals,
        "distances": distances,
        "gradients": gradients,
        "slopes": slopes(gradients),
    }


def distance_row(problem: Problem, how: Training, trace: Trace) -> dict[str, Any]:
    """Measure Lemma 3, the bound from counting, and the step of the proof that needs L²."""
    assert how.staleness is not None
    s, eta, num_rows = how.staleness, how.learning_rate, problem.features.shape[1]
    written = trace.reference[trace.probed].unsqueeze(1)
    squared = (written - trace.reads).square().sum(dim=(2, 3))
    changes = problem.gradient(written) - problem.gradient(trace.reads)
    apart = squared > 0
    steepest = (changes.square().sum(dim=(2, 3))[apart] / squared[apart]).max().item() if s else 0.0
    largest = trace.gradients.square().sum(dim=3).amax(dim=(0, 1))
    return {
        "s": s,
        "mean": squared.mean().item(),
        "max": squared.max().item(),
        "missed": int(trace.missed.sum(dim=3).max()),
        "missed_of_one": int(trace.missed.max()),
        "promised": s + (how.num_ranks - 1) * s,
        "reachable": (how.num_ranks - 1) * s,
        "bound": 4 * s**2 * eta**2 * num_rows**2 * largest.max().item(),
        "bound_by_counts": (eta * s) ** 2 * largest.sum().item(),
        "steepest_by_l": steepest / problem.smoothness,
        "steepest_by_l_squared": steepest / problem.smoothness**2,
    }


def gradient_row(problem: Problem, runs: Sequence[tuple[Training, Trace]]) -> dict[str, Any]:
    """Measure Corollary 1 over runs with different seeds, and the inequality it comes from."""
    how = runs[0][0]
    assert how.staleness is not None
    s, rounds, num_rows = how.staleness, how.rounds, problem.features.shape[1]
    start = problem.loss(torch.zeros_like(problem.linear)) - problem.least
    left = [problem.gradient(t.reference[:-1]).square().sum(dim=(1, 2)).mean() for _, t in runs]
    noise = [t.gradients.mean(dim=1).square().sum(dim=(1, 2)).mean() for _, t in runs]
    apart = [
        (t.reference[t.probed].unsqueeze(1) - t.reads).square().sum(dim=(2, 3)).mean()
        for _, t in runs
    ]
    largest = max(t.gradients.square().sum(dim=3).max().item() for _, t in runs)
    spread = num_rows**2 * largest
    measured = (
        2 * start / (how.learning_rate * rounds)
        + how.learning_rate * problem.smoothness * _mean(noise)
        + problem.smoothness**2 * _mean(apart)
    )
    return {
        "s": s,
        "T": rounds,
        "seeds": len(runs),
        "left": _mean(left),
        "least_left": torch.stack(left).min().item(),
        "most_left": torch.stack(left).max().item(),
        "bound": (2 * problem.smoothness * start + spread) / math.sqrt(rounds)
        + 4 * s**2 * spread / rounds,
        "bound_before": measured,
        "staleness_before": problem.smoothness**2 * _mean(apart),
    }


def slopes(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Slope of log left against log T for each s: fitted to all T, and between the last two."""
    found: dict[str, dict[str, float]] = {}
    for s in sorted({row["s"] for row in rows}):
        some = [row for row in rows if row["s"] == s]
        found[str(s)] = {"all": _slope(some), "last": _slope(some[-2:])}
    return found


def _slope(rows: Sequence[dict[str, Any]]) -> float:
    return slope_of_logs([row["T"] for row in rows], [row["left"] for row in rows])


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    sizes = results["problem"]
    parts = [
        f"Least squares over M = {sizes['M']} rows with Zipf popularity, {sizes['n']:,} examples "
        f"of four features, L = {sizes['L']:.0f}; N = {sizes['N']} ranks with 8 examples per "
        "round each, both bounds s, a cache with room for all rows.\n",
        _interval_table(results["intervals"]),
        _distance_table(results["distances"], sizes["N"]),
        _gradient_table(results["gradients"], results["slopes"]),
    ]
    return "\n".join(parts)


def _interval_table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "## Lemma 2: iterations between pushes\n",
        "A row that is in a batch with probability p, at write bound s. The lemma holds where the "
        "mean is (s + 1)/p within three standard errors (*off by*), as a push fires at s + 1 "
        "ticks. The deviation should be that of a negative binomial distribution.\n",
        "| s | p | intervals | mean | (s + 1)/p | deviation | expected | ticks per push | off by |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        off = (row["mean"] - row["expected"]) / row["error"]
        lines.append(
            f"| {row['s']} | {row['p']} | {row['count']} | {row['mean']:.2f} ± {row['error']:.2f} "
            f"| {row['expected']:.2f} | {row['deviation']:.2f} | {row['expected_deviation']:.2f} | "
            f"{', '.join(map(str, row['ticks']))} | {off:+.1f} |"
        )
    return "\n".join(lines) + "\n"


def _distance_table(rows: Sequence[dict[str, Any]], num_ranks: int) -> str:
    lines = [
        "## Lemma 3: distance of reads from writes\n",
        "‖x(t) − x^j(t)‖² over rounds t and workers j. The lemma holds where *share of the bound* "
        "(largest distance / 4s²η²M²B²) is at most 1, the count where *missed* is at most "
        f"*promised* = s + (N − 1)s, and the bound that follows from it where *share by counts* is "
        "at most 1. With s = 0 a read right after the round's pushes misses nothing: 0, not one "
        f"bit off. *Missed* is in fact at most {num_ranks - 1}s, as no worker holds back updates "
        "of rows it owns; *of one* is the part of a single worker: the paper allows 2s.\n",
        "| s | mean | max | share of the bound | share by counts | missed | promised | of one |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['s']} | {row['mean']:.3g} | {row['max']:.3g} | "
            f"{_share(row['max'], row['bound'])} | {_share(row['max'], row['bound_by_counts'])} | "
            f"{row['missed']} | {row['promised']} | {row['missed_of_one']} |"
        )
    by_l = max(row["steepest_by_l"] for row in rows)
    by_l_squared = max(row["steepest_by_l_squared"] for row in rows)
    lines.append(
        "\nThe step from distances to gradients holds where ‖∇f(x) − ∇f(x^j)‖² is at most its "
        f"bound. It is at most {by_l_squared:.2f} of L²‖x − x^j‖², but up to {by_l:.2f} times the "
        "paper's L‖x − x^j‖²."
    )
    return "\n".join(lines) + "\n"


def _gradient_table(rows: Sequence[dict[str, Any]], by_s: dict[str, dict[str, float]]) -> str:
    lines = [
        "## Corollary 1: the mean squared gradient at η = 1/(L√T)\n",
        "*Left* is (1/T) Σ ‖∇f(x(t))‖², the mean over seeds. The corollary holds where "
        "*share of the bound* is at most 1. It is small because M²B² is loose; *share before* is "
        "the share of the proof's own inequality with measured means in place of M²B² and of "
        "Lemma 3, and must be at most 1 too; *from staleness* is the share of its third term. "
        "*Beside s = 0* is left over left without staleness, for the same batches.\n",
        "| s | T | seeds | left (range) | share of the bound | share before | from staleness | "
        "beside s = 0 |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    fresh = {row["T"]: row["left"] for row in rows if row["s"] == 0}
    for row in rows:
        span = f" ({row['least_left']:.3g} to {row['most_left']:.3g})" if row["seeds"] > 1 else ""
        lines.append(
            f"| {row['s']} | {row['T']:,} | {row['seeds']} | {row['left']:.3g}{span} | "
            f"{row['left'] / row['bound']:.2g} | {row['left'] / row['bound_before']:.3f} | "
            f"{row['staleness_before'] / row['bound_before']:.2f} | "
            f"{row['left'] / fresh[row['T']]:.3f} |"
        )
    named = "; ".join(
        f"{slope['all']:.2f} and {slope['last']:.2f} at s = {s}" for s, slope in by_s.items()
    )
    lines.append(
        "\nThe rate is O(1/√T) where the slope of log left against log T tends to −0.5 or less. "
        f"Fitted to all T, and between the last two: {named}. It says little where staleness "
        "dominates the shorter runs: the corollary needs a T that is large against 4s²."
    )
    return "\n".join(lines) + "\n"


def _training(
    problem: Problem, rounds: int, staleness: int, seed: int, probes: Sequence[int]
) -> Training:
    eta = 1 / (problem.smoothness * math.sqrt(rounds))
    return Training(rounds, eta, staleness, _NUM_RANKS, seed=seed, probes=probes)


def _mean(values: Sequence[Float64[Tensor, ""]]) -> float:
    return torch.stack(list(values)).mean().item()


def _share(value: float, bound: float) -> str:
    return f"{value / bound:.2g}" if bound else f"{value:.2g} (bound 0)"


BENCHMARK = Benchmark(
    "staleness-theory", "python -m benchmarks.het.staleness_theory", ABOUT, run, table
)

if __name__ == "__main__":
    run_command(BENCHMARK)
