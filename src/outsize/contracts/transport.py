"""How rows travel between a worker and their owners: what a cache needs to know of it."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


class Transport:
    """Every row travels, as float32; stores with owners on other ranks have their own."""

    def is_remote(self, ids: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Which rows are worth a copy here: those that travel to be read."""
        return torch.ones_like(ids, dtype=torch.bool)

    def bytes_per_row(self, dim: int) -> int:
        """Bytes per row or gradient of this width on its way to or from its owner."""
        return 4 * dim

    def as_sent(self, vectors: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
        """Gradients as they arrive at their owner, rounded as the wire rounds them."""
        return vectors
