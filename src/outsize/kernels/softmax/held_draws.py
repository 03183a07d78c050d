"""Draws from the items that a cache holds, as one kernel returns them with what is held of each."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Float32, Int64
from torch import Tensor

from outsize.kernels.directory.lookup import SortedKeys
from outsize.kernels.softmax.scored_items import SoftmaxDraws


@dataclass(frozen=True)
class HeldKeys:
    """The keys of a cache's rows, and how to find them.

    Attributes:
        keys: The key in each row.
        encoded_at: The clock at which each row was encoded.
        clock: The clock now.
        lists: The lists that keys are looked up in, as in `rows_holding`.
    """

    keys: Int64[Tensor, " rows"]
    encoded_at: Int64[Tensor, " rows"]
    clock: int
    lists: tuple[SortedKeys, SortedKeys]


@dataclass(frozen=True)
class HeldDraws:
    """Draws with what the cache holds of each drawn item.

    Attributes:
        draws: The draws.
        keys: Their keys; −1 for row −1.
        ages: Their ages; 0 for row −1.
        embeddings: Their embeddings; any for row −1.
        uniforms: One more uniform random number per draw.
        rounded: The queries as they were multiplied.
    """

    draws: SoftmaxDraws
    keys: Int64[Tensor, "batch k"]
    ages: Int64[Tensor, "batch k"]
    embeddings: Float32[Tensor, "batch k dim"]
    uniforms: Float32[Tensor, "batch k"]
    rounded: Float[Tensor, "batch dim"]
