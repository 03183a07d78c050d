"""Pointers in the place of ids ("Clustering the Sketch", Appendix D)."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int64, Integer
from torch import Tensor

from outsize.errors import DataError


@dataclass(frozen=True)
class Codes:
    """The encoded ids of one feature for a batch, as `EmbeddingTable.encode` gives them.

    Attributes:
        values: The pointers of each id.
        offsets: Start of each bag among the ids; without offsets every bag is one id.
        weights: A weight for each id; for sum pooling only.
    """

    values: Integer[Tensor, "n pointers"]
    offsets: Int64[Tensor, " batch"] | None = None
    weights: Float[Tensor, " n"] | None = None

    def __post_init__(self) -> None:
        if self.values.dim() != 2:
            raise DataError(
                f"codes must be (N, pointers), but got the shape {tuple(self.values.shape)}: "
                "flatten bags and give their offsets"
            )

    @property
    def batch_size(self) -> int:
        """Number of bags."""
        return (self.values if self.offsets is None else self.offsets).shape[0]
