"""What a cache returns: items it holds, and items drawn for queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float32, Int64
from torch import Tensor


@dataclass(frozen=True)
class HeldItems:
    """Items in rows of a cache, to be re-encoded and written back.

    Attributes:
        rows: Their rows; −1 for no item.
        keys: Their keys. A row that holds another item by the time of the write-back is skipped.
        features: The encoder's inputs, `(n, …)` by name.
    """

    rows: Int64[Tensor, " n"]
    keys: Int64[Tensor, " n"]
    features: Mapping[str, Tensor]


@dataclass(frozen=True)
class Draw:
    """Items drawn from softmax(β·score): k draws for each of B queries.

    Nothing here has gradients. If a query has nothing to draw from (an empty cache, or all items
    masked), its rows and keys are −1, its log-partition is −∞, and the rest is filler.

    Attributes:
        rows: Rows of the drawn items.
        keys: Keys of the drawn items.
        features: The encoder's inputs, `(B, k, …)` by name.
        embeddings: Cached embeddings: stale, and rounded to the cache's precision.
        ages: Age of each: commits since it was encoded.
        logits: β·score plus log-weight, which the draw is from.
        log_partition: log Σ exp(logit) over all items of the cache that are not masked.
        uniforms: One uniform random number per draw, for the "sampled" estimator.
        mean_embedding: Σ p̃ⱼ Eⱼ over the same items, with `with_mean=True`.
        pair_logits: Logits of every query for the drawn items of all queries, flattened as by
            `items`, with `with_pairs=True`. −∞ for items that are masked for the query, and for
            draws without an item.
    """

    rows: Int64[Tensor, "batch k"]
    keys: Int64[Tensor, "batch k"]
    features: Mapping[str, Tensor]
    embeddings: Float32[Tensor, "batch k dim"]
    ages: Int64[Tensor, "batch k"]
    logits: Float32[Tensor, "batch k"]
    log_partition: Float32[Tensor, " batch"]
    uniforms: Float32[Tensor, "batch k"]
    mean_embedding: Float32[Tensor, "batch dim"] | None = None
    pair_logits: Float32[Tensor, "batch draws"] | None = None

    @property
    def num(self) -> int:
        """Draws per query."""
        return self.rows.shape[1]

    def items(self) -> HeldItems:
        """The drawn items, flattened; those of the first query come first."""
        flat = {name: values.flatten(0, 1) for name, values in self.features.items()}
        return HeldItems(self.rows.flatten(), self.keys.flatten(), flat)
