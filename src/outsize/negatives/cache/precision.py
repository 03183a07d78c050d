"""How the embeddings of items are kept: in float32, bfloat16, or int8 with a scale each."""

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
    return scale_rows(embeddings, dtype)


def restore(kept: Tensor, scales: Float32[Tensor, " n"] | None) -> Float32[Tensor, "n dim"]:
    """Embeddings as float32."""
    return kept.to(torch.float32) if scales is None else unscale_rows(kept, scales)
