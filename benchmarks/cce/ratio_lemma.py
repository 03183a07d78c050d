"""The lemma behind the theorem of CCE: Lemma B.4 of "Clustering the Sketch", and its Figure 7.

For independent a₁ … a_n ≥ 0 of one distribution, and shares p_i ≥ 0 of sum 1 with p_n ≤ 1 / n,

    E [a_n / Σ p_i a_i] ≥ 1.

Figure 7 shows n = 2, where p_n = p and p₁ = 1 − p, for exponential and for χ² variables; both
have closed forms, which are drawn beside what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Generator, Tensor

from benchmarks.runner import run_command
from outsize.bench import Benchmark

ABOUT = "the expectation of Lemma B.4, and Figure 7"
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_SIZES = (2, 3, 10, 100)
_CLOSED: dict[str, Callable[[float], float]] = {
    "exponential": lambda p: _exponential(p),
    "chi-square": lambda p: 1 / (math.sqrt(p) * (math.sqrt(p) + math.sqrt(1 - p))),
}


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measured expectations: Figure 7, then the lemma for several n and shares."""
    draws, repetitions = (5_000, 5) if quick else (50_000, 40)
    generator = Generator().manual_seed(0)
    figure, lemma = [], []
    for kind, closed in _CLOSED.items():
        say(f"Figure 7, {kind}")
        for p in SHARES:
            found = _repeated(kind, [1 - p, p], draws, repetitions, generator)
            figure.append({"kind": kind, "p": p, "exact": closed(p), **found})
        for n in _SIZES:
            say(f"Lemma B.4, {kind}, n = {n}")
            for name, shares in shares_of(n).items():
                size = max(1, draws * 2 // n)
                found = _repeated(kind, shares, size, repetitions, generator)
                lemma.append({"kind": kind, "n": n, "shares": name, **found})
    sizes = {"draws": draws, "repetitions": repetitions, "seed": 0}
    return {**sizes, "figure": figure, "lemma": lemma}


def shares_of(n: int) -> dict[str, list[float]]:
    """Shares p₁ … p_n of sum 1, where p_n is at most 1 / n, by what they are."""
    weights = [0.5**i for i in range(min(n - 1, 30))] + [0.0] * max(0, n - 31)
    total = sum(weights)

    def rest(last: float) -> list[float]:
        return [(1 - last) * weight / total for weight in weights]

    return {
        "all 1/n": [1 / n] * n,
        "p_n = 1/2n, others equal": [(1 - 0.5 / n) / (n - 1)] * (n - 1) + [0.5 / n],
        "p_n = 1/n, others halving": [*rest(1 / n), 1 / n],
        "p_n = 1/2n, others halving": [*rest(0.5 / n), 0.5 / n],
    }


def expectation(
    kind: str, shares: Sequence[float], draws: int, generator: Generator
) -> Float64[Tensor, ""]:
    """The mean of a_n / Σ p_i a_i over draws.

    Args:
        kind: The distribution of a, "exponential" or "chi-square".
        shares: p₁ … p_n.
        draws: Number of draws.
        generator: What they come from.
    """
    size = (draws, len(shares))
    if kind == "exponential":
        values = torch.empty(size, dtype=torch.float64).exponential_(generator=generator)
    else:
        values = torch.randn(size, dtype=torch.float64, generator=generator).square()
    mixed = values @ torch.tensor(shares, dtype=torch.float64)
    mean: Tensor = (values[:, -1] / mixed).mean()
    return mean


def _repeated(
    kind: str, shares: Sequence[float], draws: int, repetitions: int, generator: Generator
) -> dict[str, float]:
    found = torch.stack([expectation(kind, shares, draws, generator) for _ in range(repetitions)])
    error = found.std() / math.sqrt(repetitions)
    return {"mean": found.mean().item(), "standard_error": error.item()}


def _exponential(p: float) -> float:
    """The expectation for n = 2 and exponential variables, whose share of the sum is uniform."""
    slope = 2 * p - 1
    if abs(slope) < 1e-9:
        return 1.0
    return 1 / slope - (1 - p) / slope**2 * math.log(p / (1 - p))


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    kinds = list(_CLOSED)
    lines = [
        f"Means of {results['repetitions']} repetitions of {results['draws']:,} draws (± standard "
        f"error), seed {results['seed']}.\n",
        "**Figure 7**: E [x / (p x + (1 − p) y)]; the lemma says at least 1 for p up to 0.5\n",
        f"| p | {' | '.join(f'{kind} | closed form' for kind in kinds)} |",
        "|--:|" + "--:|--:|" * len(kinds),
    ]
    for p in SHARES:
        cells = []
        for kind in kinds:
            row = next(r for r in results["figure"] if (r["kind"], r["p"]) == (kind, p))
            cells += [_measured(row), f"{row['exact']:.4f}"]
        lines.append(f"| {p} | {' | '.join(cells)} |")
    lines += [
        "\n**Lemma B.4**: E [a_n / Σ p_i a_i], at least 1; with all shares 1/n it is 1\n",
        f"| n | shares | {' | '.join(kinds)} |",
        "|--:|---|" + "--:|" * len(kinds),
    ]
    for n in _SIZES:
        for name in shares_of(n):
            same = [r for r in results["lemma"] if (r["n"], r["shares"]) == (n, name)]
            lines.append(f"| {n} | {name} | {' | '.join(map(_measured, same))} |")
    return "\n".join(lines) + "\n"


def _measured(row: dict[str, Any]) -> str:
    return f"{row['mean']:.4f} ± {row['standard_error']:.4f}"


BENCHMARK = Benchmark("ratio-lemma", "python -m benchmarks.cce.ratio_lemma", ABOUT, run, table)

if __name__ == "__main__":
    run_command(BENCHMARK)
