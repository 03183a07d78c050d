"""Rows of 16 bits, rounded up or down at random, so that updates below half a step are not lost.

An update is computed in float32. Rounded to the nearest, one that is smaller than half the distance
between neighbouring numbers leaves the row as it was, each time anew, and the row does not train.
Rounded up with the probability that makes the mean right, E[rounded] = value, such updates add up.

The draws are no generator's: each is a function of (seed, row, its clock, ticks, column). So a row
gets the same bits on any device, in any batch order, with any owner and after a resume.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from outsize.hashing import derive_seed, mix_bits, uniform_at

_HALF_PRECISION = (torch.bfloat16, torch.float16)
_TICK_BITS = 31


def is_half_precision(dtype: torch.dtype) -> bool:
    """Whether rows of this type are rounded at random: bfloat16 and float16."""
    return dtype in _HALF_PRECISION


def rounding_keys(
    seed: int, ids: Int64[Tensor, " n"], clocks: Int64[Tensor, " n"], ticks: Int64[Tensor, " n"]
) -> Int64[Tensor, " n"]:
    """What the draws of an update are a function of, a word for each row.

    Args:
        seed: The store's.
        ids: Store ids of the rows.
        clocks: Their clocks after the update.
        ticks: By how much it moves them: a push of none must not repeat the draws of the last one.
    """
    rows = mix_bits(ids + derive_seed(seed, "row rounding"))
    return mix_bits(rows + (clocks << _TICK_BITS) + ticks)


def round_at_random(
    values: Float32[Tensor, "n dim"], dtype: torch.dtype, keys: Int64[Tensor, " n"]
) -> Float[Tensor, "n dim"]:
    """Numbers in half precision: each is one of its two neighbours there, and right in the mean.

    A finite number beyond the range becomes the largest there is (65,504 in float16), not infinity;
    infinity and NaN stay.

    Args:
        values: What to round.
        dtype: bfloat16 or float16.
        keys: From `rounding_keys`.
    """
    largest = torch.finfo(dtype).max
    values = torch.where(values.isfinite(), values.clamp(-largest, largest), values)
    nearest = values.to(dtype)
    back = nearest.float()
    # The bits of a float count its magnitude: one more is the next number away from zero.
    away = values.abs() > back.abs()
    step = torch.where(away, 1, -1).to(torch.int16)
    other = (nearest.view(torch.int16) + step).view(dtype)
    share = (values - back).abs() / (other.float() - back).abs()  # 0 where nothing is rounded
    columns = torch.arange(values.shape[1], device=values.device)
    draws = uniform_at(keys.unsqueeze(1) + columns)
    return torch.where(draws < share, other, nearest)
