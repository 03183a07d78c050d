"""How the cache stores embeddings, by name in `PRECISIONS`: whole numbers have a scale per item."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from outsize.kernels.rows.scaled import scale_rows, unscale_rows

PRECISIONS: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}


def has_scales(dtype: torch.dtype) -> bool:
    """Whether vectors of a stored dtype have one scale per item."""
    return not dtype.is_floating_point


def to_stored(
    embeddings: Float[Tensor, "n dim"], dtype: torch.dtype
) -> tuple[Tensor, Float32[Tensor, " n"] | None]:
    """Round embeddings to the stored dtype, with one scale per item if `has_scales`.

    The error of an int8 number is at most 1/254 of the largest in its embedding; that of a bfloat16
    number is at most 1/256 of the number itself.
    """
    return scale_rows(embeddings, dtype) if has_scales(dtype) else (embeddings.to(dtype), None)


def from_stored(vectors: Tensor, scales: Float32[Tensor, " n"] | None) -> Float32[Tensor, "n dim"]:
    """Stored vectors as float32 embeddings."""
    return vectors.to(torch.float32) if scales is None else unscale_rows(vectors, scales)
