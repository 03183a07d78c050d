"""Encoding many texts in groups of similar length, to bound what activations take."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

TEXTS_AT_ONCE = 64


def in_groups(
    ids: Int64[Tensor, "n length"], encode: Callable[[Tensor], Tensor]
) -> Float[Tensor, "n dim"]:
    """Encode texts in groups, each as wide as its longest text, and return them in order.

    Args:
        ids: Token ids padded with −1, of one text at least.
        encode: Token ids of a group → its vectors.
    """
    lengths = (ids >= 0).sum(dim=1)
    order = lengths.argsort(descending=True, stable=True)
    parts = [
        encode(ids[rows][:, : max(1, int(lengths[rows].max()))])
        for rows in order.split(TEXTS_AT_ONCE)
    ]
    encoded = torch.cat(parts)
    return torch.empty_like(encoded).index_copy_(0, order, encoded)
