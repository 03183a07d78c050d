"""Stochastic gradient descent with a biased gradient (Lemma 6), on quadratics.

For an S-smooth loss and steps of size η along gₜ, with ‖E[gₜ] − ∇L(θₜ)‖ ≤ Δₜ and ‖gₜ‖ ≤ 2M, the
paper states

    (1/T) Σ E‖∇L(θₜ)‖² ≤ (L(θ₀) − L*)/(ηT) + (1/2T) Σ Δₜ² + 2ηSM².

The last step of its proof divides by η instead of η/2, so the right side is half of what is proved.
A constant bias b shows it: the descent settles where ∇L = −b, at ‖∇L‖² = Δ², twice what the paper
allows as T grows and η falls. Twice the right side holds.

The quadratics here are diagonal and the noise has a known variance, so all expectations are exact:
coordinate i has mean μᵢ and variance vᵢ, which follow linear recursions. In place of 4M² stands the
largest E‖gₜ‖² of a run, which is all the proof uses and less than any bound on ‖gₜ‖².
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Generator, Tensor


@dataclass(frozen=True)
class Quadratics:
    """Many problems at once: L(θ) = Σᵢ aᵢ θᵢ² / 2, a constant bias, and independent noise.

    Attributes:
        curvatures: a; the largest of a problem is its S.
        start: θ₀.
        bias: E[g] − ∇L.
        noise: Standard deviation of g in each coordinate.
        learning_rate: η of each problem.
    """

    curvatures: Float64[Tensor, "problems dim"]
    start: Float64[Tensor, "problems dim"]
    bias: Float64[Tensor, "problems dim"]
    noise: Float64[Tensor, "problems dim"]
    learning_rate: Float64[Tensor, " problems"]


def descend(
    problems: Quadratics, steps: int
) -> tuple[Float64[Tensor, " problems"], Float64[Tensor, " problems"]]:
    """(1/T) Σ E‖∇L(θₜ)‖², and the right side of the lemma as stated in the paper."""
    a, eta = problems.curvatures, problems.learning_rate.unsqueeze(1)
    mean, variance = problems.start, torch.zeros_like(problems.start)
    left, largest = torch.zeros_like(problems.learning_rate), torch.zeros_like(eta[:, 0])
    for _ in range(steps):
        squared = (a * mean).square() + a.square() * variance
        left = left + squared.sum(dim=1) / steps
        pull = a * mean + problems.bias
        size = pull.square() + a.square() * variance + problems.noise.square()
        largest = torch.maximum(largest, size.sum(dim=1))
        mean = mean - eta * pull
        variance = (1 - eta * a).square() * variance + (eta * problems.noise).square()
    above = (a * problems.start.square()).sum(dim=1) / 2  # L(θ₀) − L*
    right = (
        above / (problems.learning_rate * steps)
        + problems.bias.square().sum(dim=1) / 2
        + problems.learning_rate * a.amax(dim=1) * largest / 2
    )
    return left, right


def constant_pull(steps: int = 480, learning_rate: float = 1 / 30) -> dict[str, float]:
    """L = θ²/2 from its minimum, with a bias of 1: the smallest counterexample to the paper.

    Here ‖gₜ‖ ≤ 1 throughout, and M = 1 as in the statement of the lemma (‖gₜ‖ ≤ M): its 2ηSM² is
    then 4 times what the proof needs.
    """
    one = torch.ones(1, 1, dtype=torch.float64)
    eta = torch.full((1,), learning_rate, dtype=torch.float64)
    left, _ = descend(Quadratics(one, 0 * one, one, 0 * one, eta), steps)
    return {"left": left.item(), "right": 0.5 + 2 * learning_rate}


def random_quadratics(num: int, seed: int = 0, dim: int = 4) -> Quadratics:
    """Problems that differ in conditioning, start, bias, noise and learning rate (η ≤ 1/S)."""
    generator = Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, dtype=torch.float64, generator=generator)

    def normal(spread: Tensor) -> Tensor:
        drawn = torch.randn(num, dim, dtype=torch.float64, generator=generator)
        return drawn * spread.unsqueeze(1)

    curvatures = 10 ** (3 * uniform(num, dim) - 2)
    return Quadratics(
        curvatures,
        normal(10 ** (3 * uniform(num) - 2)),
        normal(10 ** (3 * uniform(num) - 2)),
        normal(10 ** (3 * uniform(num) - 2)).abs(),
        10 ** (-3 * uniform(num)) / curvatures.amax(dim=1),
    )


def random_row(num: int, steps: int, seed: int = 0) -> dict[str, Any]:
    """How often and by how much the paper's right side is exceeded, and the share of its double."""
    left, right = descend(random_quadratics(num, seed), steps)
    share = left / right
    return {
        "T": steps,
        "problems": num,
        "exceeded": (share > 1).double().mean().item(),
        "share": share.max().item(),
        "share_of_double": share.max().item() / 2,
    }


def section(example: dict[str, float], rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "## Lemma 6: descent with a biased gradient\n",
        "θ²/2 from its minimum, bias 1, η = 1/30, T = 480: the mean squared gradient is "
        f"{example['left']:.3f}, the paper's right side {example['right']:.3f}, its double "
        f"{2 * example['right']:.3f}. Random quadratics of four coordinates, with exact "
        "expectations: the lemma would hold as it stands where *share* is at most 1, and holds "
        "with its factor 2 where *share of the double* is.\n",
        "| T | problems | exceed the paper | share | share of the double |",
        "|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['T']:,} | {row['problems']:,} | {row['exceeded']:.1%} | {row['share']:.3f} | "
            f"{row['share_of_double']:.3f} |"
        )
    return "\n".join(lines) + "\n"
