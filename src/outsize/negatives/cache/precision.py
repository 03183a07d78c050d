"""How the cache stores embeddings: as float32, bfloat16, or int8 with one scale per item."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from outsize.errors import ConfigError
from outsize.kernels.rows.scaled import scale_rows, unscale_rows

Precision = Literal["float32", "bfloat16", "int8"]
PRECISIONS: dict[Precision, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}


def dtype_of(precision: str) -> torch.dtype:
    """The dtype of stored vectors."""
    if precision not in PRECISIONS:
        raise ConfigError(f"precision is one of {', '.join(PRECISIONS)}, but got {precision!r}")
    return PRECISIONS[precision]


def to_stored(
    embeddings: Float[Tensor, "n dim"], dtype: torch.dtype
) -> tuple[Tensor, Float32[Tensor, " n"] | None]:
    """Round embeddings to the stored dtype; int8 comes with one scale per item.

    The error of an int8 number is at most 1/254 of the largest in its embedding; that of a bfloat16
    number is at most 1/256 of the number itself.
    """
    if dtype != torch.int8:
        return embeddings.to(dtype), None
    return scale_rows(embeddings, dtype)


def from_stored(vectors: Tensor, scales: Float32[Tensor, " n"] | None) -> Float32[Tensor, "n dim"]:
    """Stored vectors as float32 embeddings."""
    return vectors.to(torch.float32) if scales is None else unscale_rows(vectors, scales)
