"""Items that queries are scored against, and draws from the softmax of those scores.

The logit of item j for query q is `q·e_j + log_weight_j`, where `e_j` is `vectors[j]`, times
`scales[j]` for int8 vectors. Every path rounds queries to bfloat16 first where the vectors are
not float32 (int8 numbers are exact in bfloat16), multiplies and adds in float32, and applies a
scale to the finished product, so that paths differ only in the order of their sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import BFloat16, Float32, Int8, Int64
from torch import Tensor

from outsize.errors import ConfigError
from outsize.kernels.ragged import Ragged

Vectors = (
    Float32[Tensor, "num_items dim"]
    | BFloat16[Tensor, "num_items dim"]
    | Int8[Tensor, "num_items dim"]
)
# Rows that do not count for each query: a matrix, or lists of any length.
Excluded = Int64[Tensor, "num_queries num_excluded"] | Ragged | None


@dataclass(frozen=True)
class ScoredItems:
    """The items of a softmax.

    Attributes:
        vectors: One row an item, finite, also for items of weight 0.
        scales: For int8 vectors: item j is `scales[j] * vectors[j]`. `None` otherwise.
        log_weights: Added to every query's logit of the item; −inf: it is never drawn and never
            counts.
    """

    vectors: Vectors
    scales: Float32[Tensor, " num_items"] | None
    log_weights: Float32[Tensor, " num_items"]

    def __post_init__(self) -> None:
        dtype = self.vectors.dtype
        if self.vectors.dim() != 2 or dtype not in (torch.float32, torch.bfloat16, torch.int8):
            raise ConfigError(
                "vectors must be a matrix of float32, bfloat16 or int8, but got "
                f"{dtype} of shape {tuple(self.vectors.shape)}"
            )
        if (dtype == torch.int8) != (self.scales is not None):
            got = "none" if self.scales is None else "some"
            raise ConfigError(f"int8 vectors need scales and others none, but {dtype} got {got}")
        for name, numbers in (("scales", self.scales), ("log_weights", self.log_weights)):
            if numbers is None:
                continue
            if numbers.shape != self.vectors.shape[:1] or numbers.dtype != torch.float32:
                raise ConfigError(
                    f"{name} must be one float32 number for each of {len(self.vectors):,} items, "
                    f"but got {numbers.dtype} of shape {tuple(numbers.shape)}"
                )

    @property
    def num_items(self) -> int:
        """How many there are, those of weight 0 included."""
        return self.vectors.shape[0]

    def part(self, which: slice) -> ScoredItems:
        """Some of them, in place."""
        scales = None if self.scales is None else self.scales[which]
        return ScoredItems(self.vectors[which], scales, self.log_weights[which])

    def round_queries(
        self, queries: Float32[Tensor, "num_queries dim"]
    ) -> Float32[Tensor, "num_queries dim"]:
        """Queries as every path multiplies them."""
        return queries if self.vectors.dtype == torch.float32 else queries.bfloat16().float()


@dataclass(frozen=True)
class SoftmaxDraws:
    """Independent draws, with replacement, from each query's softmax over items.

    Attributes:
        rows: The items drawn; −1 where the query has nothing to draw from.
        logits: Their logits; −inf where the row is −1.
        log_partition: The logarithm of the sum of `exp(logit)` over all items that count; −inf
            where none does, NaN for a query that is not finite.
        mean: Where it was asked for, the mean of the items' vectors (scaled) under the softmax,
            which is the gradient of the log-partition by the query. Zeros where the log-partition
            is −inf, NaN where it is NaN.
    """

    rows: Int64[Tensor, "num_queries num"]
    logits: Float32[Tensor, "num_queries num"]
    log_partition: Float32[Tensor, " num_queries"]
    mean: Float32[Tensor, "num_queries dim"] | None = None


def check_queries(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    num: int,
    excluded: Excluded,
) -> None:
    """Refuse what cannot be scored against these items."""
    if queries.dim() != 2 or queries.dtype != torch.float32:
        raise ConfigError(
            f"queries must be a float32 matrix, but got {queries.dtype} of shape "
            f"{tuple(queries.shape)}"
        )
    if queries.shape[1] != items.vectors.shape[1] or queries.device != items.vectors.device:
        raise ConfigError(
            f"queries of dim {queries.shape[1]} on {queries.device} cannot be scored against "
            f"items of dim {items.vectors.shape[1]} on {items.vectors.device}"
        )
    if num < 0:
        raise ConfigError(f"num must not be negative, but got {num}")
    if isinstance(excluded, Ragged):
        if excluded.num_lines != len(queries):
            raise ConfigError(
                f"excluded must have a list for each of {len(queries)} queries, but got "
                f"{excluded.num_lines}"
            )
    elif excluded is not None and (
        excluded.dim() != 2
        or excluded.shape[0] != queries.shape[0]
        or excluded.dtype != torch.int64
    ):
        raise ConfigError(
            f"excluded must be int64, one line for each of {queries.shape[0]} queries, but got "
            f"{excluded.dtype} of shape {tuple(excluded.shape)}"
        )


def as_lists(excluded: Excluded) -> Ragged | None:
    """Excluded rows as lists; `None` where there are none."""
    lists = None if excluded is None else Ragged.of(excluded)
    return None if lists is None or not len(lists.values) else lists
