"""Vectors as whole numbers with a float32 scale each: int8 rows of caches and messages.

The scale is the largest magnitude over the largest number of the type, so int8 is off by at most
1/254 of the vector's largest number.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32
from torch import Tensor


def scale_rows(
    vectors: Float[Tensor, "n dim"], dtype: torch.dtype
) -> tuple[Tensor, Float32[Tensor, " n"]]:
    """Round vectors to whole numbers of a type, each with its own scale."""
    vectors = vectors.float()
    largest = float(torch.iinfo(dtype).max)
    scales = vectors.abs().amax(dim=1) / largest
    smallest = torch.finfo(torch.float32).tiny  # what a row of zeros may be divided by
    numbers = (vectors / scales.clamp_min(smallest).unsqueeze(1)).round_()
    return numbers.clamp_(-largest, largest).to(dtype), scales


def unscale_rows(numbers: Tensor, scales: Float32[Tensor, " n"]) -> Float32[Tensor, "n dim"]:
    """Vectors as float32, from what `scale_rows` returned."""
    return numbers.to(torch.float32).mul_(scales.unsqueeze(1))
