"""Items in the cache's storage format, as they are written, read and sent between ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.negatives.cache.precision import from_stored


@dataclass(frozen=True)
class StoredItems:
    """Items in stored precision, so that sending them between ranks does not round again.

    Attributes:
        vectors: Stored embeddings, `(n, dim)`.
        scales: One scale per item, for int8.
        features: The encoder's inputs, `(n, …)` by name; empty where only embeddings are written.
    """

    vectors: Tensor
    scales: Tensor | None
    features: Mapping[str, Tensor]

    def embeddings(self) -> Float32[Tensor, "n dim"]:
        """Embeddings as float32."""
        return from_stored(self.vectors, self.scales)

    def take(self, which: Int64[Tensor, " m"]) -> StoredItems:
        """The items at the given positions."""
        return self.with_tensors([values[which] for values in self.tensors()])

    def tensors(self) -> list[Tensor]:
        """All tensors as a list; the first dimension of each is the item."""
        scales = [] if self.scales is None else [self.scales]
        return [self.vectors, *scales, *self.features.values()]

    def with_tensors(self, tensors: Sequence[Tensor]) -> StoredItems:
        """Items of the same format, from the list that `tensors` returned for others."""
        vectors, *rest = tensors
        scales = None if self.scales is None else rest.pop(0)
        return StoredItems(vectors, scales, dict(zip(self.features, rest, strict=True)))
