"""Random choices among weighted points, made by a generator on the CPU for any device."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Generator, Tensor


def draw_by_mass(
    mass: Float64[Tensor, " n"], num_draws: int, generator: Generator
) -> Int64[Tensor, " draws"]:
    """Draw indices with probability proportional to `mass`, with replacement."""
    cumulative = mass.cpu().cumsum(0)  # on CUDA it differs from run to run
    uniform = torch.rand(num_draws, dtype=torch.float64, generator=generator)
    drawn = torch.searchsorted(cumulative, uniform * cumulative[-1], right=True)
    return drawn.clamp_(max=len(mass) - 1).to(mass.device)


def draw_distinct(
    weights: Float64[Tensor, " n"], num_draws: int, generator: Generator
) -> tuple[Int64[Tensor, " draws"], Float64[Tensor, " draws"]]:
    """Draw distinct indices by priority sampling, and the weights to give them.

    Priority sampling (Duffield, Lund and Thorup 2007) keeps the indices of the greatest w/u, u
    uniform. With the weight max(w, τ), τ the greatest w/u left out, every weighted sum over the
    drawn ones has the expectation of that sum over all. Equal weights are sampled uniformly.

    Args:
        weights: Positive weights.
        num_draws: Fewer than there are weights.
        generator: Of the CPU.
    """
    uniform = torch.rand(len(weights), dtype=torch.float64, generator=generator)
    priority = weights / (1 - uniform).to(weights.device)
    greatest = priority.topk(num_draws + 1)
    drawn = greatest.indices[:-1].sort().values
    return drawn, weights[drawn].clamp(min=greatest.values[-1])
