"""Random sampling of weighted points, on any device, with a generator on the CPU."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64, Num
from torch import Generator, Tensor

from outsize.interrupts import check_stop

_CHUNK = 1 << 20


def draw_by_mass(
    mass: Float64[Tensor, " n"], num_draws: int, generator: Generator
) -> Int64[Tensor, " draws"]:
    """Draw indices with probability proportional to `mass`, with replacement."""
    cumulative = mass.cpu().cumsum(0)  # not deterministic on CUDA
    uniform = torch.rand(num_draws, dtype=torch.float64, generator=generator)
    drawn = torch.searchsorted(cumulative, uniform * cumulative[-1], right=True)
    return drawn.clamp_(max=len(mass) - 1).to(mass.device)


def draw_distinct(
    weights: Num[Tensor, " n"], num_draws: int, generator: Generator
) -> tuple[Int64[Tensor, " draws"], Float64[Tensor, " draws"]]:
    """Draw distinct indices by priority sampling, and return them with their new weights.

    Priority sampling (Duffield, Lund and Thorup 2007) draws a uniform u for each weight w and keeps
    the indices with the largest w/u. Their new weight is max(w, τ), where τ is the largest w/u that
    was not kept: weighted sums over the sample are then unbiased. Equal weights are sampled
    uniformly. Apart from the result, only two chunks of the weights are held in memory.

    Args:
        weights: Numbers >= 0; more than `num_draws` must be > 0. Those of 0 are never drawn.
        num_draws: Number of indices to draw.
        generator: A generator on the CPU.
    """
    best = weights.new_empty(0, dtype=torch.float64)
    places = torch.empty(0, dtype=torch.int64, device=weights.device)
    bound = -1.0
    for first in range(0, len(weights), _CHUNK):
        check_stop()
        chunk = weights[first : first + _CHUNK].double()
        uniform = torch.rand(len(chunk), dtype=torch.float64, generator=generator)
        chunk = chunk / (1 - uniform).to(chunk.device)
        which = (chunk > bound).nonzero().flatten()  # to select all of them again takes longer
        best = torch.cat([best, chunk[which]])
        places = torch.cat([places, which + first])
        if len(best) > num_draws + _CHUNK:
            best, order = best.topk(num_draws + 1)
            places, bound = places[order], float(best[-1])
    best, order = best.topk(num_draws + 1)
    places = places[order]
    drawn = places[:-1].sort().values
    return drawn, weights[drawn].double().clamp(min=best[-1])
