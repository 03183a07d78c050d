"""What the examples of the synthetic click log are made by, as one kernel reads it."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float32, Float64, Int64
from torch import Tensor

EFFECTS = 5  # of an id: a latent vector of four, and a linear effect


@dataclass(frozen=True)
class ClickLaw:
    """What the examples of a log are made by; tensors on one device.

    Attributes:
        seeds: For dense features, ids, effects of ids, labels; then one per split.
        dense_weight: The effect of each dense feature.
        sizes: Ids of each categorical feature.
        strides: What ranks are multiplied by to scatter them.
        totals: Mass of all ranks of each feature.
        head: Cumulative mass of the first ranks, a power of two of them.
        effects: Shared effects of each cluster of each feature.
        numbers: 1 − skew; the mass of the head and its integral; ids that enter per example; the
            weight of shared and own effects; those of linear terms, of an id's, of products; scale
            and bias of the logit.
        num_train: Training examples, which come before those of other splits.
        num_clusters: Clusters of each feature.
        is_logarithmic: Whether the skew is 1, so that masses are logarithms of ranks.
        has_own: Whether ids have effects of their own.
    """

    seeds: Int64[Tensor, " seeds"]
    dense_weight: Float32[Tensor, " num_dense"]
    sizes: Int64[Tensor, " features"]
    strides: Int64[Tensor, " features"]
    totals: Float64[Tensor, " features"]
    head: Float64[Tensor, " head"]
    effects: Float32[Tensor, "clusters 5"]
    numbers: Float64[Tensor, "11"]
    num_train: int
    num_clusters: int
    is_logarithmic: bool
    has_own: bool


@dataclass(frozen=True)
class MadeClicks:
    """Examples as the kernel writes them: the ids of a feature are one line."""

    dense: Float32[Tensor, "batch num_dense"]
    ids: Int64[Tensor, "features batch"]
    labels: Float32[Tensor, " batch"]
    probability: Float32[Tensor, " batch"]
