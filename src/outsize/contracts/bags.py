"""Inputs of a feature: bags of ids, pooled as `nn.EmbeddingBag` does, or codes instead of ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Integer
from torch import Tensor

from outsize.contracts.ids import is_exporting
from outsize.errors import ConfigError, DataError
from outsize.kernels.distinct.distinct import Distinct
from outsize.kernels.gather.gather import Bags, gather
from outsize.spec import Pooling


@dataclass(frozen=True)
class Bag:
    """The ids of one feature for a batch.

    Attributes:
        values: `(B,)` for one id per bag, `(B, L)` for bags of equal length, or `(N,)` with
            `offsets`.
        offsets: `(B,)` start of each bag in flat `values`; bag i ends where bag i+1 starts.
        weights: One weight per id, in the shape of `values`; for sum pooling only.
    """

    values: Int64[Tensor, "..."]
    offsets: Int64[Tensor, " batch"] | None = None
    weights: Float[Tensor, "..."] | None = None

    def __post_init__(self) -> None:
        given: dict[str, object] = {
            "ids": self.values, "offsets": self.offsets, "weights": self.weights
        }  # fmt: skip
        for name, part in given.items():
            if part is not None and not isinstance(part, Tensor):
                kind = type(part).__name__
                raise DataError(f"{name} must be a tensor, but got a {kind}: use torch.as_tensor")
        if self.weights is not None and self.weights.shape != self.values.shape:
            raise DataError(
                f"weights of shape {tuple(self.weights.shape)} do not fit ids of shape "
                f"{tuple(self.values.shape)}: give one weight per id"
            )
        if self.offsets is None:
            if self.values.dim() not in (1, 2):
                raise DataError(
                    f"ids of shape {tuple(self.values.shape)} are not bags: give (B,), (B, L), "
                    "or flat values with offsets"
                )
        elif self.values.dim() != 1 or self.offsets.dim() != 1:
            raise DataError(
                "offsets go with flat ids: expected values (N,) and offsets (B,), but got "
                f"{tuple(self.values.shape)} and {tuple(self.offsets.shape)}"
            )
        elif self.offsets.device.type == "cpu" and not torch.compiler.is_compiling():
            self._check_offsets(self.offsets)

    def _check_offsets(self, offsets: Int64[Tensor, " batch"]) -> None:
        if offsets.numel() == 0:
            if self.values.numel():
                raise DataError(f"{self.values.numel()} ids but no offsets: they belong to no bag")
        elif int(offsets[0]) != 0:
            raise DataError(f"the first offset must be 0, but got {int(offsets[0])}")
        elif bool((offsets.diff() < 0).any()) or int(offsets[-1]) > self.values.numel():
            raise DataError(
                f"offsets must not decrease or exceed the number of ids, {self.values.numel()}"
            )

    @property
    def batch_size(self) -> int:
        """Number of bags."""
        return (self.values if self.offsets is None else self.offsets).shape[0]

    @property
    def is_one_id_each(self) -> bool:
        """Whether every bag is a single id without a weight, so that pooling is not needed."""
        return self.values.dim() == 1 and self.offsets is None and self.weights is None

    def to(self, device: torch.device | str) -> Bag:
        """The bags on another device."""
        offsets = None if self.offsets is None else self.offsets.to(device, non_blocking=True)
        weights = None if self.weights is None else self.weights.to(device, non_blocking=True)
        return Bag(self.values.to(device, non_blocking=True), offsets, weights)

    def take(self, rows: Int64[Tensor, " n"]) -> Bag:
        """The bags in the given rows."""
        if self.offsets is None:
            weights = None if self.weights is None else self.weights.index_select(0, rows)
            return Bag(self.values.index_select(0, rows), None, weights)
        ends = torch.cat((self.offsets[1:], self.offsets.new_tensor([self.values.numel()])))
        lengths = (ends - self.offsets).index_select(0, rows)
        offsets = lengths.cumsum(0) - lengths
        within = torch.arange(int(lengths.sum()), device=rows.device)
        places = within + (self.offsets[rows] - offsets).repeat_interleave(lengths)
        weights = None if self.weights is None else self.weights[places]
        return Bag(self.values[places], offsets, weights)

    def flat(self, padding_id: int | None = None) -> Bag:
        """The same bags as flat values with offsets, without padding."""
        values, weights, offsets = self.values, self.weights, self.offsets
        if offsets is None:
            length = values.shape[1] if values.dim() == 2 else 1
            offsets = torch.arange(self.batch_size, device=values.device) * length
            values = values.flatten()
            weights = None if weights is None else weights.flatten()
        if padding_id is not None:
            is_real = values != padding_id
            num_before = torch.cat((is_real.new_zeros(1, dtype=torch.int64), is_real.cumsum(0)))
            offsets = num_before[offsets]
            values = values[is_real]
            weights = None if weights is None else weights[is_real]
        return Bag(values, offsets, weights)


def pool_rows(
    rows: Float[Tensor, "n dim"],
    offsets: Int64[Tensor, " batch"],
    pooling: Pooling,
    weights: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, "batch dim"]:
    """Pool each bag of rows to one vector; an empty bag gives zeros.

    Args:
        rows: One row per id, in the order of the bags.
        offsets: Start of each bag.
        pooling: "sum", "mean" or "max".
        weights: One factor per row; only with "sum".
    """
    require_poolable(pooling, weights)
    if not is_exporting() and rows.shape[0] == 0:
        nothing = rows.sum() if weights is None else rows.sum() + weights.sum().to(rows.dtype)
        return rows.new_zeros(offsets.shape[0], rows.shape[1]) + nothing  # so gradients exist
    positions = torch.arange(rows.shape[0], device=rows.device)
    return F.embedding_bag(
        positions,
        rows,
        offsets,
        mode=pooling,
        per_sample_weights=None if weights is None else weights.to(rows.dtype),
    )


def pool_features(
    rows: Float[Tensor, "distinct dim"],
    found: Distinct,
    bags: Sequence[Bag],
    poolings: Sequence[Pooling],
) -> list[Float[Tensor, "batch dim"]]:
    """Pool the bags of several features of one width, in one pass if they are sums and means.

    Args:
        rows: The rows of `found.ids`.
        found: The distinct ids of all features, one after the other.
        bags: Flat bags of each feature.
        poolings: The pooling of each feature.
    """
    if not bags:
        return []
    sizes = [bag.values.shape[0] for bag in bags]
    is_listed = found.places is not None or found.runs is not None
    if not is_listed or not all(map(is_sum, bags, poolings)):
        positions = found.inverse.split(sizes)
        return [
            pool_rows(rows.index_select(0, position), _offsets(bag), pooling, bag.weights)
            for position, bag, pooling in zip(positions, bags, poolings, strict=True)
        ]
    pooled = gather(rows, found, joined_bags(bags, poolings))
    return list(pooled.split([bag.batch_size for bag in bags]))


def joined_bags(bags: Sequence[Bag], poolings: Sequence[Pooling]) -> Bags:
    """The flat bags of several features, one after the other, as sums."""
    edges, stop = [], 0
    for bag in bags:
        edges.append(_offsets(bag) + stop)
        stop += bag.values.shape[0]
    joined = torch.cat([*edges, edges[0].new_full((1,), stop)])
    return Bags(joined, _scales(bags, poolings, joined))


def is_sum(bag: Bag, pooling: Pooling) -> bool:
    """Whether pooling is a sum with constant factors: a sum or mean, without trained weights."""
    return pooling in ("sum", "mean") and (bag.weights is None or not bag.weights.requires_grad)


def _scales(
    bags: Sequence[Bag], poolings: Sequence[Pooling], edges: Int64[Tensor, " edges"]
) -> Float[Tensor, " n"] | None:
    """The factor of each id in a sum: its weight, or 1 over the size of its bag for a mean."""
    if "mean" not in poolings and all(bag.weights is None for bag in bags):
        return None
    scales: list[Tensor] = []
    first = 0
    for bag, pooling in zip(bags, poolings, strict=True):
        first, own = first + bag.batch_size, edges[first : first + bag.batch_size + 1]
        if pooling == "mean":
            counts = own.diff()
            shares = 1.0 / counts.float()
            if counts.is_cpu:
                scales.append(shares.repeat_interleave(counts))
            else:  # which would synchronize
                lines = Bags(own - own[:1]).lines_of(bag.values.shape[0])
                scales.append(shares.index_select(0, lines))
        elif bag.weights is None:
            scales.append(torch.ones(bag.values.shape[0], device=edges.device))
        else:
            scales.append(bag.weights.float())
    return torch.cat(scales)


def _offsets(bag: Bag) -> Int64[Tensor, " batch"]:
    assert bag.offsets is not None, "flat bags have offsets"
    return bag.offsets


def require_poolable(pooling: Pooling, weights: Tensor | None) -> None:
    """Raise if weights are given without sum pooling, as `nn.EmbeddingBag` does."""
    if weights is not None and pooling != "sum":
        raise ConfigError(
            f"weights need sum pooling, but the pooling is {pooling!r}; "
            "divide the weights by their sum per bag for a weighted mean"
        )


@dataclass(frozen=True)
class Codes:
    """Encoded ids from `EmbeddingTable.encode`; flat codes can replace the ids of a feature.

    Attributes:
        values: The pointers of each id.
        offsets: Start of each bag in flat codes; without offsets every bag is one id.
        weights: One weight per id; for sum pooling only.
        version: The table's `codes_version` when the codes were made. A table decodes only codes of
            its current version.
    """

    values: Integer[Tensor, "*shape pointers"]
    offsets: Int64[Tensor, " batch"] | None = None
    weights: Float[Tensor, " n"] | None = None
    version: int | None = None

    def __post_init__(self) -> None:
        if self.offsets is not None:
            self.require_flat("codes")

    def require_flat(self, name: str) -> None:
        """Raise unless the codes have the shape (N, pointers), as a batch needs."""
        if self.values.dim() != 2:
            raise DataError(
                f"{name} must be (N, pointers), but got the shape {tuple(self.values.shape)}: "
                "flatten bags and give their offsets"
            )

    @property
    def batch_size(self) -> int:
        """Number of bags."""
        return (self.values if self.offsets is None else self.offsets).shape[0]
