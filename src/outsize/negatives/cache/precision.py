"""How the embeddings of items are kept: in float32, bfloat16, or int8 with a scale each."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from outsize.errors import ConfigError

Precision = Literal["float32", "bfloat16", "int8"]
PRECISIONS: dict[Precision, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}
_LARGEST = 127.0


def dtype_of(precision: str) -> torch.dtype:
    """The type that numbers are kept in."""
    if precision not in PRECISIONS:
        raise ConfigError(f"embeddings are kept as {', '.join(PRECISIONS)}, but got {precision!r}")
    return PRECISIONS[precision]


def keep(
    embeddings: Float[Tensor, "n dim"], dtype: torch.dtype
) -> tuple[Tensor, Float32[Tensor, " n"] | None]:
    """Embeddings as they are kept, and for int8 the scale of each.

    A number kept as int8 is off by at most a 254th of its embedding's largest, one kept as
    bfloat16 by at most a 256th of itself.
    """
    if dtype != torch.int8:
        return embeddings.to(dtype), None
    embeddings = embeddings.float()
    scales = embeddings.abs().amax(dim=1) / _LARGEST
    smallest = torch.finfo(torch.float32).tiny  # what a row of zeros may be divided by
    numbers = (embeddings / scales.clamp_min(smallest).unsqueeze(1)).round_()
    return numbers.clamp_(-_LARGEST, _LARGEST).to(torch.int8), scales


def restore(kept: Tensor, scales: Float32[Tensor, " n"] | None) -> Float32[Tensor, "n dim"]:
    """Embeddings as float32."""
    embeddings = kept.to(torch.float32)
    return embeddings if scales is None else embeddings.mul_(scales.unsqueeze(1))
