"""Items as rows keep them, on their way into a cache, out of it, or to another rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.negatives.cache.precision import restore


@dataclass(frozen=True)
class KeptRows:
    """Embeddings in the precision they are kept in, so that sending them rounds nothing.

    Attributes:
        vectors: Numbers, `(n, dim)`.
        scales: The scale of each embedding, for int8.
        features: What items are encoded from, `(n, …)` by name; empty where it does not change.
    """

    vectors: Tensor
    scales: Tensor | None
    features: Mapping[str, Tensor]

    def embeddings(self) -> Float32[Tensor, "n dim"]:
        """Embeddings as float32."""
        return restore(self.vectors, self.scales)

    def take(self, which: Int64[Tensor, " m"]) -> KeptRows:
        """Some of them."""
        return self.filled([values[which] for values in self.tensors()])

    def tensors(self) -> list[Tensor]:
        """All there is, a line for each item."""
        scales = [] if self.scales is None else [self.scales]
        return [self.vectors, *scales, *self.features.values()]

    def filled(self, tensors: Sequence[Tensor]) -> KeptRows:
        """The same kind of rows, made of what `tensors` gave elsewhere."""
        vectors, *rest = tensors
        scales = None if self.scales is None else rest.pop(0)
        return KeptRows(vectors, scales, dict(zip(self.features, rest, strict=True)))
