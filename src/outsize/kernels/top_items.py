"""The best items of each query."""

from __future__ import annotations

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.kernels.softmax_draws import ScoredItems, _logits


def top_items(
    queries: Float32[Tensor, "batch dim"],
    items: ScoredItems,
    num: int,
    excluded: Int64[Tensor, "batch n"] | None = None,
) -> tuple[Int64[Tensor, "batch num"], Float32[Tensor, "batch num"]]:
    """Rows and scores, best first."""
    scores, rows = _logits(queries, items, excluded).sort(dim=1, descending=True, stable=True)
    scores, rows = scores[:, :num], rows[:, :num]
    return torch.where(scores > -torch.inf, rows, -1), scores
