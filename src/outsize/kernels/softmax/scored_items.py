"""Items that queries are scored against, and draws from the softmax of those scores.

The logit of item j for query q is `q·e_j + log_weight_j`, where `e_j` is `vectors[j]`, times
`scales[j]` for int8 vectors. Every implementation first rounds queries to bfloat16 if the vectors
are not float32 (int8 numbers are exact in bfloat16), multiplies and adds in float32, and applies
the scale to the product. Implementations therefore differ only in the order of their sums.
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
# Rows to exclude per query: a matrix, or lists of any length.
Excluded = Int64[Tensor, "num_queries num_excluded"] | Ragged | None


@dataclass(frozen=True)
class ScoredItems:
    """The items of a softmax.

    Attributes:
        vectors: One finite row per item, also for items of weight 0.
        scales: For int8 vectors: item j is `scales[j] * vectors[j]`. `None` otherwise.
        log_weights: Added to the item's logit for every query; −inf excludes the item.
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
        """Number of items, including those of weight 0."""
        return self.vectors.shape[0]

    def part(self, which: slice) -> ScoredItems:
        """A range of the items, as views."""
        scales = None if self.scales is None else self.scales[which]
        return ScoredItems(self.vectors[which], scales, self.log_weights[which])

    def contiguous(self) -> ScoredItems:
        """The same items as kernels read them, with contiguous tensors."""
        parts = (self.vectors, self.scales, self.log_weights)
        if all(part is None or part.is_contiguous() for part in parts):
            return self
        scales = None if self.scales is None else self.scales.contiguous()
        return ScoredItems(self.vectors.contiguous(), scales, self.log_weights.contiguous())

    def round_queries(
        self, queries: Float32[Tensor, "num_queries dim"]
    ) -> Float32[Tensor, "num_queries dim"]:
        """Round queries as every implementation does before the product."""
        return queries if self.vectors.dtype == torch.float32 else queries.bfloat16().float()


@dataclass(frozen=True)
class SoftmaxDraws:
    """Draws, with replacement, from each query's softmax over items.

    Attributes:
        rows: The drawn items; −1 if the query has no items.
        logits: Their logits; −inf if the row is −1.
        log_partition: The logarithm of the sum of `exp(logit)` over all items that are not
            excluded; −inf if there are none, NaN for a non-finite query.
        mean: If requested, the mean of the items' (scaled) vectors under the softmax, which is the
            gradient of the log-partition with respect to the query. Zeros if the log-partition is
            −inf, NaN if it is NaN.
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
    """Raise a `ConfigError` if queries or exclusions do not match the items."""
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
    """Excluded rows as lists; `None` if there are none."""
    lists = None if excluded is None else Ragged.of(excluded)
    return None if lists is None or not len(lists.values) else lists
