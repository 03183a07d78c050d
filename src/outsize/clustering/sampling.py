"""Random choices among weighted points, made by a generator on the CPU for any device."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64, Num
from torch import Generator, Tensor

from outsize.interrupts import check_stop

_PIECE = 1 << 20


def draw_by_mass(
    mass: Float64[Tensor, " n"], num_draws: int, generator: Generator
) -> Int64[Tensor, " draws"]:
    """Draw indices with probability proportional to `mass`, with replacement."""
    cumulative = mass.cpu().cumsum(0)  # on CUDA it differs from run to run
    uniform = torch.rand(num_draws, dtype=torch.float64, generator=generator)
    drawn = torch.searchsorted(cumulative, uniform * cumulative[-1], right=True)
    return drawn.clamp_(max=len(mass) - 1).to(mass.device)


def draw_distinct(
    weights: Num[Tensor, " n"], num_draws: int, generator: Generator
) -> tuple[Int64[Tensor, " draws"], Float64[Tensor, " draws"]]:
    """Draw distinct indices by priority sampling, and the weights to give them.

    Priority sampling (Duffield, Lund and Thorup 2007) keeps the indices of the greatest w/u, u
    uniform. With the weight max(w, τ), τ the greatest w/u left out, every weighted sum over the
    drawn ones has the expectation of that sum over all. Equal weights are sampled uniformly.
    Beside the result, memory is used for a piece of the weights only.

    Args:
        weights: Numbers >= 0, more of them > 0 than are drawn; those of 0 are never drawn.
        num_draws: How many.
        generator: Of the CPU.
    """
    best = weights.new_empty(0, dtype=torch.float64)
    places = torch.empty(0, dtype=torch.int64, device=weights.device)
    for first in range(0, len(weights), _PIECE):
        check_stop()
        piece = weights[first : first + _PIECE].double()
        uniform = torch.rand(len(piece), dtype=torch.float64, generator=generator)
        best = torch.cat([best, piece / (1 - uniform).to(piece.device)])
        places = torch.cat([places, torch.arange(first, first + len(piece), device=piece.device)])
        if len(best) > num_draws + 1:
            best, kept = best.topk(num_draws + 1)
            places = places[kept]
    drawn = places[:-1].sort().values
    return drawn, weights[drawn].double().clamp(min=best[-1])
