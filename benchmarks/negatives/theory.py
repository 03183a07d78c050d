"""What the paper of the negative cache (Lindgren et al. 2021) proves, beside what the cache does.

The claims, in the order of the report, with the module that states and measures each:

- The estimators have the expectation that is claimed (`estimator_spread`).
- Theorem 2 for any stale scores, and a bias that is linear in staleness (`stale_softmax`).
- Theorem 2 for a cache swept at ρ, linear in 1/ρ − 1 (`refresh_sweeps`).
- Lemma 4, a uniform sample of the corpus (`partial_softmax`).
- Lemma 6, descent with a biased gradient (`biased_descent`).
- Theorems 3 and 5, training (`cached_descent`, `descent_results`).

Two statements of the paper do not hold as they stand and are measured beside corrected ones: Lemma
6 lacks a factor 2, and Theorem 2 assumes steps of at most ηβM, which can be 2ηβM long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.negatives import (
    biased_descent,
    descent_results,
    estimator_spread,
    partial_softmax,
    refresh_sweeps,
    stale_softmax,
)
from benchmarks.negatives.cached_descent import Way, train_in_turns
from benchmarks.negatives.small_towers import make_pairs
from benchmarks.runner import run_command
from outsize.bench import Benchmark

ABOUT = "a negative cache against Theorems 2, 3 and 5 and Lemmas 4 and 6 of its text"
_RATE = 1.0  # η√T of the training runs


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure all claims."""
    turns = 200 if quick else 1000
    say(f"estimators, {turns:,} turns each")
    draws, stalenesses = ((1, 4), (0.0,)) if quick else ((1, 4, 16), (0.0, 0.01, 0.1))
    spread = estimator_spread.spread_rows(turns, draws, stalenesses)
    say("bounds on the bias of stale scores")
    betas = (1.0, 20.0) if quick else (0.1, 1.0, 5.0, 20.0, 100.0)
    bounds = [stale_softmax.bound_row(beta, 50 if quick else 2000) for beta in betas]
    worst = stale_softmax.shares_of_bounds(*stale_softmax.opposite_items(1e-3), beta=1.0)
    linear = [stale_softmax.linearity_row(beta, 512) for beta in betas]
    sweeps = []
    refreshes = [2.0**-i for i in (0, 1, 3)] if quick else [2.0**-i for i in range(7)]
    for beta, rate, batch in ((5.0, 1e-3, 64), (20.0, 1e-4, 64), (5.0, 1e-3, 4)):
        say(f"sweeps at several ρ, β = {beta:g}, batch {batch}")
        steps = 16 if quick else 64
        sweeps.append(refresh_sweeps.sweep_group(beta, rate, batch, refreshes, steps=steps))
        if quick:
            break
    rates = [1e-4 * 2**i for i in range(3 if quick else 6)]
    by_rate = refresh_sweeps.rate_slope(5.0, rates)
    samples = []
    for beta in (0.5, 5.0) if quick else (0.5, 2.0, 5.0, 10.0, 20.0):
        say(f"uniform samples, β = {beta:g}")
        sizes, num = ((16, 64), 1000) if quick else ((8, 16, 32, 64, 128, 256), 16_000)
        samples.append(partial_softmax.bias_rows(beta, 256 if quick else 1024, sizes, num))
    say("descent with a biased gradient")
    lengths = (16, 256) if quick else (16, 256, 4096)
    descents = [biased_descent.random_row(1000 if quick else 5000, steps) for steps in lengths]
    return {
        "turns": turns,
        "spread": spread,
        "bounds": bounds,
        "worst": worst,
        "linear": linear,
        "sweeps": sweeps,
        "by_rate": by_rate,
        "samples": samples,
        "constant_pull": biased_descent.constant_pull(),
        "descents": descents,
        "training": training(quick, say),
    }


def training(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure Theorems 3 and 5: several ρ at several T, and several cache sizes at one T."""
    num_items, num_queries = (256, 128) if quick else (2**13, 2**11)
    whole = [Way(None), *(Way(rho) for rho in (1.0, 0.1, 0.01, 1e-3, 1e-4))]
    parts = [Way(0.1, size) for size in (2**8, 2**10, 2**12)]
    parts += [Way(0.1, size, weighted=False) for size in (2**8, 2**10)]
    parts.append(Way(0.1, num_draws=4))
    plan = [(64, whole, 1), (256, whole + parts, 3), (1024, whole, 1)]
    if quick:
        plan = [(8, [Way(None), Way(1.0), Way(0.1)], 1), (16, [*whole[:4], Way(0.1, 64)], 1)]
    rows = []
    for steps, ways, num_seeds in plan:
        for seed in range(num_seeds):
            say(f"training, T = {steps:,}, seed {seed}")
            pairs = make_pairs(num_items, num_queries, num_items // 128, seed)
            runs = train_in_turns(ways, pairs, steps, _RATE, seed)
            rows += [descent_results.run_row(one, seed) for one in runs]
    main = plan[1][0]
    sizes = {"items": num_items, "queries": num_queries, "rate": _RATE, "main": main}
    return {"sizes": sizes, "rows": rows, "slopes": descent_results.slopes(rows)}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    parts = [
        estimator_spread.section(results["spread"], results["turns"]),
        stale_softmax.section(results["bounds"], results["worst"], results["linear"]),
        refresh_sweeps.section(results["sweeps"], results["by_rate"]),
        partial_softmax.section(results["samples"]),
        biased_descent.section(results["constant_pull"], results["descents"]),
        descent_results.section(results["training"]),
    ]
    return "\n".join(parts)


BENCHMARK = Benchmark("negative-theory", "python -m benchmarks.negatives.theory", ABOUT, run, table)

if __name__ == "__main__":
    run_command(BENCHMARK)
