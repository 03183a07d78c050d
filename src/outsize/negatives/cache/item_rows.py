"""The rows of a cache: embeddings of items, and the features they are encoded from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from outsize.errors import ConfigError, DataError, NonFiniteError
from outsize.kernels.rows.lines import put_lines
from outsize.negatives.cache.precision import PRECISIONS, has_scales, to_stored
from outsize.negatives.cache.stored_items import StoredItems
from outsize.registries import require_known

FeatureShapes = Mapping[str, tuple[Sequence[int], torch.dtype]]


class ItemRows(nn.Module):
    """One row per item, all in buffers.

    Args:
        num_rows: Number of rows.
        dim: Width of an embedding.
        features: Name → (shape, dtype) of the feature of one item.
        precision: How embeddings are stored, a key of `PRECISIONS`.
    """

    vectors: Tensor
    scales: Tensor | None

    def __init__(self, num_rows: int, dim: int, features: FeatureShapes, precision: str) -> None:
        super().__init__()
        require_known("precision", precision, PRECISIONS)
        dtype = PRECISIONS[precision]
        self.dim = dim
        self.precision = precision
        self.shapes = {name: (tuple(shape), kind) for name, (shape, kind) in features.items()}
        self.register_buffer("vectors", torch.zeros(num_rows, dim, dtype=dtype))
        self.register_buffer("scales", torch.zeros(num_rows) if has_scales(dtype) else None)
        for name, (shape, kind) in self.shapes.items():
            if not name.isidentifier():
                raise ConfigError(f"a feature's name must be an identifier, but got {name!r}")
            self.register_buffer(f"feature_{name}", torch.zeros(num_rows, *shape, dtype=kind))

    def extra_repr(self) -> str:  # noqa: D102
        return f"precision={self.precision!r}, features={list(self.shapes)}"

    def at(self, rows: Int64[Tensor, " n"]) -> StoredItems:
        """The items in the given rows, in stored precision."""
        scales = None if self.scales is None else self.scales[rows]
        return StoredItems(self.vectors[rows], scales, self.features_at(rows))

    def embeddings_at(self, rows: Int64[Tensor, " n"]) -> Float32[Tensor, "n dim"]:
        """The embeddings in the given rows, as float32."""
        scales = None if self.scales is None else self.scales[rows]
        return StoredItems(self.vectors[rows], scales, {}).embeddings()

    def features_at(self, rows: Int64[Tensor, " n"]) -> dict[str, Tensor]:
        """The features in the given rows, `(n, …)` by name."""
        return {name: getattr(self, f"feature_{name}")[rows] for name in self.shapes}

    def prepare(
        self,
        embeddings: Float[Tensor, "n width"],
        keys: Int64[Tensor, " n"],
        features: Mapping[str, Tensor] | None = None,
    ) -> StoredItems:
        """Check items and convert them to stored precision; writes nothing."""
        self._require_embeddings(embeddings, keys)
        if features is not None:
            _require_keys(keys, len(embeddings))
            self._require_features(features, len(keys))
        vectors, scales = to_stored(embeddings, self.vectors.dtype)
        names = self.shapes if features else ()
        return StoredItems(vectors, scales, {name: (features or {})[name] for name in names})

    def put(self, rows: Int64[Tensor, " n"], items: StoredItems) -> None:
        """Write items into rows; no row may occur twice."""
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
        if not torch.isfinite(embeddings.sum()):  # a finite sum rules out NaN and infinity
            bad = ~torch.isfinite(embeddings).all(dim=1)
            if bad.any():
                raise NonFiniteError(
                    f"{int(bad.sum())} of {len(keys)} embeddings are NaN or infinite (the first "
                    f"is item {int(keys[bad][0])}): nothing was written; check the encoder"
                )

    def _require_features(self, given: Mapping[str, Tensor], num: int) -> None:
        if set(given) != set(self.shapes):
            raise DataError(
                f"the cache has the features {sorted(self.shapes)}, but got {sorted(given)}"
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
            f"keys must be one int64 per item, here {num}, but got {tuple(keys.shape)} of "
            f"{keys.dtype}"
        )
    if num and int(keys.min()) < 0:
        raise DataError(f"keys must be >= 0, but got {int(keys.min())}")


def require_weights(log_weights: Tensor, keys: Tensor) -> None:
    """Refuse weights that are not one finite number per item."""
    if log_weights.shape != keys.shape or log_weights.device != keys.device:
        raise DataError(
            f"log_weights must be one per item, here {len(keys)} on {keys.device}, but got "
            f"{tuple(log_weights.shape)} on {log_weights.device}"
        )
    if not torch.isfinite(log_weights).all():
        raise NonFiniteError("log_weights must be finite: do not push items of weight 0")
