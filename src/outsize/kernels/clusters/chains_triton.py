"""The Markov chains that choose the first centroids of k-means, on CUDA by Triton.

Each chain depends on the points that those before it chose, so one program runs a block of them.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float32, Float64
from torch import Tensor

from outsize.kernels.launches_triton import launch
from outsize.kernels.launching import on_device

CANDIDATES = 1024  # that are compared with a chosen point at a time


def chains_by_triton(
    rows: Float32[Tensor, "n dim"],
    squares: Float64[Tensor, " n"],
    density: Float64[Tensor, " n"],
    limits: Float64[Tensor, "chains length"],
) -> Float32[Tensor, "chains dim"]:
    """The points that chains end at; the candidates of a chain are adjacent.

    Args:
        rows: The candidates of all chains, of a small dim: its numbers are read one by one.
        squares: The squared distance of each candidate to the nearest point chosen before.
        density: The density that candidates were drawn with.
        limits: The random numbers of each step, on the device of the candidates.
    """
    num_chains, length = limits.shape
    picked = torch.empty(num_chains, rows.shape[1], dtype=rows.dtype, device=rows.device)
    with on_device(rows):
        launch(
            chains_kernel, (1,),
            (rows.contiguous(), squares.clone(), density, limits.contiguous(),
             density.new_empty(length), picked, num_chains),
            DIM=rows.shape[1], LENGTH=length, CANDIDATES=CANDIDATES, num_warps=8,
        )  # fmt: skip
    return picked


@triton.jit(do_not_specialize=["num_chains"])
@no_type_check
def chains_kernel(
    rows,
    least,
    density,
    limits,
    ratios,
    picked,
    num_chains,
    DIM: tl.constexpr,
    LENGTH: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """Run the chains one by one; `least` is updated after each, `ratios` is working memory."""
    place = tl.arange(0, LENGTH)
    end = num_chains * LENGTH
    for chain in range(num_chains):
        first = chain * LENGTH
        tl.store(ratios + place, tl.load(least + first + place) / tl.load(density + first + place))
        tl.debug_barrier()  # the loads below see what was stored
        state = first
        ratio = tl.load(ratios)
        for step in tl.static_range(1, LENGTH):
            next_ratio = tl.load(ratios + step)
            is_taken = next_ratio > tl.load(limits + first + step) * ratio
            state = tl.where(is_taken, first + step, state)
            ratio = tl.where(is_taken, next_ratio, ratio)
        for d in tl.static_range(DIM):
            tl.store(picked + chain * DIM + d, tl.load(rows + state * DIM + d))
        for start in range(first + LENGTH, end, CANDIDATES):
            candidate = start + tl.arange(0, CANDIDATES)
            inside = candidate < end
            found = tl.zeros((CANDIDATES,), dtype=tl.float64)
            for d in tl.static_range(DIM):
                number = tl.load(rows + candidate * DIM + d, mask=inside, other=0.0)
                difference = number - tl.load(rows + state * DIM + d)
                found += (difference * difference).to(tl.float64)
            before = tl.load(least + candidate, mask=inside, other=0.0)
            tl.store(least + candidate, tl.minimum(before, found), mask=inside)
        tl.debug_barrier()
