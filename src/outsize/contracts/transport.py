"""How rows travel between workers and owners, as far as a cache needs to know."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


class Transport:
    """The default: every row is remote and travels as float32. Sharded stores override it."""

    def is_remote(self, ids: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Which rows are remote, and so worth a copy here."""
        return torch.ones_like(ids, dtype=torch.bool)

    @property
    def has_remote_rows(self) -> bool:
        """Whether any row is remote."""
        return True

    def bytes_per_row(self, dim: int) -> int:
        """Bytes per row, or per gradient, of this width in a message."""
        return 4 * dim

    def as_sent(self, vectors: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
        """Gradients as their owner receives them, rounded by the wire."""
        return vectors
