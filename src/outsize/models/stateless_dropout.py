"""Dropout whose mask is a function of the row's id, and of no generator's state.

A run that is resumed, and ranks that compute parts of a batch, drop the same numbers.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.hashing import mix_bits

_BITS = 16
_PER_WORD = 64 // _BITS


def drop_numbers(
    values: Float[Tensor, "n width"], ids: Int64[Tensor, " n"], share: float, seed: int
) -> Float[Tensor, "n width"]:
    """Set a share of the numbers to zero, and scale the others up by 1 / (1 − share).

    Args:
        values: A row per id.
        ids: Distinct ids.
        share: Probability of each number to be dropped, to the nearest of 65,536.
        seed: Seed of the mask.
    """
    num_words = -(-values.shape[1] // _PER_WORD)
    columns = mix_bits(torch.arange(num_words, device=ids.device) + seed)
    words = mix_bits(mix_bits(ids ^ seed).unsqueeze(1) ^ columns)
    draws = words.view(torch.int16)[:, : values.shape[1]]  # −2¹⁵ … 2¹⁵ − 1
    limit = round(share * (1 << _BITS)) - (1 << (_BITS - 1))
    return values * ((draws.int() >= limit).to(values.dtype) / (1 - share))
