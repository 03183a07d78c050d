"""Stochastic rounding of 16-bit rows, so that small updates are not lost.

Updates are computed in float32. With rounding to nearest, an update smaller than half the distance
between neighbouring numbers never changes the row, so the row does not train. Stochastic rounding
rounds up with the probability that makes it unbiased, E[rounded] = value, so small updates add up.

The random numbers do not come from a generator: each is a function of (seed, row, clock, ticks,
column). A row therefore gets the same bits on any device, in any batch order, with any owner and
after a resume.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from outsize.hashing import derive_seed, mix_bits, uniform_at

_HALF_PRECISION = (torch.bfloat16, torch.float16)
_TICK_BITS = 31


def is_half_precision(dtype: torch.dtype) -> bool:
    """Whether rows of this type are rounded stochastically: bfloat16 and float16."""
    return dtype in _HALF_PRECISION


def rounding_keys(
    seed: int, ids: Int64[Tensor, " n"], clocks: Int64[Tensor, " n"], ticks: Int64[Tensor, " n"]
) -> Int64[Tensor, " n"]:
    """The keys of an update's random numbers, one per row.

    Args:
        seed: The store's seed.
        ids: Store ids of the rows.
        clocks: Their clocks after the update.
        ticks: The increment of their clocks: an update of 0 ticks must not repeat the random
            numbers of the previous one.
    """
    rows = mix_bits(ids + derive_seed(seed, "row rounding"))
    return mix_bits(rows + (clocks << _TICK_BITS) + ticks)


def round_at_random(
    values: Float32[Tensor, "n dim"], dtype: torch.dtype, keys: Int64[Tensor, " n"]
) -> Float[Tensor, "n dim"]:
    """Round numbers to half precision stochastically: up or down, and unbiased.

    A finite number beyond the range becomes the largest finite one (65,504 in float16), not
    infinity. Infinity and NaN are unchanged.

    Args:
        values: The numbers to round.
        dtype: bfloat16 or float16.
        keys: The keys from `rounding_keys`.
    """
    largest = torch.finfo(dtype).max
    values = torch.where(values.isfinite(), values.clamp(-largest, largest), values)
    nearest = values.to(dtype)
    back = nearest.float()
    # Adding 1 to the bits of a float gives the next number away from zero.
    away = values.abs() > back.abs()
    step = torch.where(away, 1, -1).to(torch.int16)
    other = (nearest.view(torch.int16) + step).view(dtype)
    share = (values - back).abs() / (other.float() - back).abs()  # 0 if the value is exact
    columns = torch.arange(values.shape[1], device=values.device)
    draws = uniform_at(keys.unsqueeze(1) + columns)
    return torch.where(draws < share, other, nearest)
