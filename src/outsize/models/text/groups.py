"""Encoding many texts in groups of similar length, to bound what activations take."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

TEXTS_AT_ONCE = 64
_TOKENS_ON_A_GPU = 1 << 16  # fewer would be bound by launches


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
    parts = [encode(trimmed(ids[rows])) for rows in order.split(_texts_at_once(ids))]
    encoded = torch.cat(parts)
    return torch.empty_like(encoded).index_copy_(0, order, encoded)


def trimmed(ids: Int64[Tensor, "n length"]) -> Int64[Tensor, "n longest"]:
    """Texts, as wide as the longest of them."""
    lengths = (ids >= 0).sum(dim=1)
    return ids[:, : max(1, int(lengths.max()))]


def _texts_at_once(ids: Int64[Tensor, "n length"]) -> int:
    """How many texts make a group: on a GPU more, as many as have a number of tokens together."""
    if not ids.is_cuda:
        return TEXTS_AT_ONCE
    return max(TEXTS_AT_ONCE, _TOKENS_ON_A_GPU // max(1, ids.shape[1]))
