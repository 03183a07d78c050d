"""What a cache keeps of items: their embeddings, and what those are encoded from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from outsize.errors import ConfigError, DataError, NonFiniteError
from outsize.negatives.kept import Precision, dtype_of, keep, restore

FeatureShapes = Mapping[str, tuple[Sequence[int], torch.dtype]]


class ItemRows(nn.Module):
    """A row for each item, all in buffers.

    Args:
        num_rows: How many.
        dim: Width of an embedding.
        features: Name → (shape, type) of one item's tensor.
        precision: How embeddings are kept.
    """

    vectors: Tensor
    scales: Tensor | None

    def __init__(
        self, num_rows: int, dim: int, features: FeatureShapes, precision: Precision
    ) -> None:
        super().__init__()
        dtype = dtype_of(precision)
        self.dim = dim
        self.precision = precision
        self.shapes = {name: (tuple(shape), kind) for name, (shape, kind) in features.items()}
        self.register_buffer("vectors", torch.zeros(num_rows, dim, dtype=dtype))
        self.register_buffer("scales", torch.zeros(num_rows) if dtype == torch.int8 else None)
        for name, (shape, kind) in self.shapes.items():
            if not name.isidentifier():
                raise ConfigError(f"a feature's name must be an identifier, but got {name!r}")
            self.register_buffer(f"feature_{name}", torch.zeros(num_rows, *shape, dtype=kind))

    def extra_repr(self) -> str:  # noqa: D102
        return f"precision={self.precision!r}, features={list(self.shapes)}"

    def embeddings_at(self, rows: Int64[Tensor, " n"]) -> Float32[Tensor, "n dim"]:
        """Embeddings as float32."""
        return restore(self.vectors[rows], None if self.scales is None else self.scales[rows])

    def features_at(self, rows: Int64[Tensor, " n"]) -> dict[str, Tensor]:
        """What items are encoded from, `(n, …)` by name."""
        return {name: self.get_buffer(f"feature_{name}")[rows] for name in self.shapes}

    def write(self, rows: Int64[Tensor, " n"], embeddings: Float[Tensor, "n dim"]) -> None:
        """Keep embeddings; no row may be named twice."""
        kept, scales = keep(embeddings, self.vectors.dtype)
        self.vectors[rows] = kept
        if self.scales is not None and scales is not None:
            self.scales[rows] = scales

    def write_features(self, rows: Int64[Tensor, " n"], features: Mapping[str, Tensor]) -> None:
        """Keep what items are encoded from; no row may be named twice."""
        for name, values in features.items():
            buffer = self.get_buffer(f"feature_{name}")
            if buffer.dtype == torch.uint16:  # which torch cannot write by index
                buffer, values = buffer.view(torch.int16), values.view(torch.int16)
            buffer[rows] = values

    def require(
        self,
        embeddings: Float[Tensor, "n width"],
        keys: Int64[Tensor, " n"],
        features: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Refuse what cannot be kept, before anything is written."""
        if embeddings.shape[1] != self.dim:
            raise DataError(
                f"embeddings must be (n, {self.dim}), but got {tuple(embeddings.shape)}"
            )
        if not torch.isfinite(embeddings.sum()):  # no finite sum hides a NaN or an infinity
            bad = ~torch.isfinite(embeddings).all(dim=1)
            if bad.any():
                raise NonFiniteError(
                    f"{int(bad.sum())} of {len(keys)} embeddings are NaN or infinite (the first "
                    f"is of item {int(keys[bad][0])}): nothing was written; look at the encoder"
                )
        if features is not None:
            self._require_features(features, len(keys))

    def _require_features(self, given: Mapping[str, Tensor], num: int) -> None:
        if set(given) != set(self.shapes):
            raise DataError(
                f"the cache keeps the features {sorted(self.shapes)}, but got {sorted(given)}"
            )
        for name, (shape, kind) in self.shapes.items():
            values = given[name]
            if tuple(values.shape) != (num, *shape) or values.dtype != kind:
                raise DataError(
                    f"feature {name!r} must be {(num, *shape)} of {kind}, but got "
                    f"{tuple(values.shape)} of {values.dtype}"
                )
