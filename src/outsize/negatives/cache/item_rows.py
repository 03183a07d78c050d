"""What a cache keeps of items: their embeddings, and what those are encoded from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from outsize.errors import ConfigError, DataError, NonFiniteError
from outsize.kernels.rows.lines import put_lines
from outsize.negatives.cache.precision import Precision, dtype_of, keep
from outsize.negatives.cache.stored_items import KeptRows

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

    def at(self, rows: Int64[Tensor, " n"]) -> KeptRows:
        """Rows as they are kept."""
        scales = None if self.scales is None else self.scales[rows]
        return KeptRows(self.vectors[rows], scales, self.features_at(rows))

    def embeddings_at(self, rows: Int64[Tensor, " n"]) -> Float32[Tensor, "n dim"]:
        """Embeddings as float32."""
        scales = None if self.scales is None else self.scales[rows]
        return KeptRows(self.vectors[rows], scales, {}).embeddings()

    def features_at(self, rows: Int64[Tensor, " n"]) -> dict[str, Tensor]:
        """What items are encoded from, `(n, …)` by name."""
        return {name: getattr(self, f"feature_{name}")[rows] for name in self.shapes}

    def prepare(
        self,
        embeddings: Float[Tensor, "n width"],
        keys: Int64[Tensor, " n"],
        features: Mapping[str, Tensor] | None = None,
    ) -> KeptRows:
        """Items as they would be kept; refuses what cannot be, before anything is written."""
        self._require_embeddings(embeddings, keys)
        if features is not None:
            _require_keys(keys, len(embeddings))
            self._require_features(features, len(keys))
        vectors, scales = keep(embeddings, self.vectors.dtype)
        names = self.shapes if features else ()
        return KeptRows(vectors, scales, {name: (features or {})[name] for name in names})

    def put(self, rows: Int64[Tensor, " n"], items: KeptRows) -> None:
        """Keep items; no row may be named twice."""
        put_lines(self.vectors, rows, items.vectors)
        if self.scales is not None and items.scales is not None:
            put_lines(self.scales, rows, items.scales)
        for name, values in items.features.items():
            put_lines(self.get_buffer(f"feature_{name}"), rows, values)

    def _require_embeddings(self, embeddings: Tensor, keys: Tensor) -> None:
        if embeddings.shape[1] != self.dim:
            raise DataError(
                f"embeddings must be (n, {self.dim}), but got {tuple(embeddings.shape)}"
            )
        if embeddings.device != self.vectors.device:
            raise DataError(
                f"embeddings are on {embeddings.device}, but the cache is on "
                f"{self.vectors.device}: move one of them"
            )
        if not torch.isfinite(embeddings.sum()):  # no finite sum hides a NaN or an infinity
            bad = ~torch.isfinite(embeddings).all(dim=1)
            if bad.any():
                raise NonFiniteError(
                    f"{int(bad.sum())} of {len(keys)} embeddings are NaN or infinite (the first "
                    f"is of item {int(keys[bad][0])}): nothing was written; look at the encoder"
                )

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


def _require_keys(keys: Tensor, num: int) -> None:
    if keys.shape != (num,) or keys.dtype != torch.int64:
        raise DataError(
            f"keys must be one int64 for each of {num} items, but got {tuple(keys.shape)} of "
            f"{keys.dtype}"
        )
    if num and int(keys.min()) < 0:
        raise DataError(f"keys must be >= 0, but got {int(keys.min())}")


def require_weights(log_weights: Tensor, keys: Tensor) -> None:
    """Refuse weights that are not one finite number for each item."""
    if log_weights.shape != keys.shape or log_weights.device != keys.device:
        raise DataError(
            f"log_weights must be one for each of {len(keys)} items, on {keys.device}, but got "
            f"{tuple(log_weights.shape)} on {log_weights.device}"
        )
    if not torch.isfinite(log_weights).all():
        raise NonFiniteError("log_weights must be finite: leave items of weight 0 out")
