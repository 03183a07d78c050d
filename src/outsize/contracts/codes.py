"""Pointers in the place of ids ("Clustering the Sketch", Appendix D)."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int64, Integer
from torch import Tensor

from outsize.errors import DataError


@dataclass(frozen=True)
class Codes:
    """Encoded ids, as `EmbeddingTable.encode` gives them; flat ones stand in a batch for a feature.

    Attributes:
        values: The pointers of each id.
        offsets: Start of each bag among flat ids; without offsets every bag is one id.
        weights: A weight for each id; for sum pooling only.
        version: Which pointers of the table these are, its `codes_version` when they were made.
            A table decodes codes of its own version only.
    """

    values: Integer[Tensor, "*shape pointers"]
    offsets: Int64[Tensor, " batch"] | None = None
    weights: Float[Tensor, " n"] | None = None
    version: int | None = None

    def __post_init__(self) -> None:
        if self.offsets is not None:
            self.require_flat("codes")

    def require_flat(self, name: str) -> None:
        """Refuse codes that are not (N, pointers), which no batch can have."""
        if self.values.dim() != 2:
            raise DataError(
                f"{name} must be (N, pointers), but got the shape {tuple(self.values.shape)}: "
                "flatten bags and give their offsets"
            )

    @property
    def batch_size(self) -> int:
        """Number of bags."""
        return (self.values if self.offsets is None else self.offsets).shape[0]
