"""What a cache hands out: items as it holds them, and items drawn for queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.negatives.cache.stored_items import KeptRows


@dataclass(frozen=True)
class HeldItems:
    """Some rows of a cache, to be encoded anew and written back.

    Attributes:
        rows: Where they are; −1 stands for no item.
        keys: Which items they hold, so that a row given to another item meanwhile is not rewritten.
        features: What each item is encoded from, `(n, …)` by name.
    """

    rows: Int64[Tensor, " n"]
    keys: Int64[Tensor, " n"]
    features: Mapping[str, Tensor]


@dataclass(frozen=True)
class Draw:
    """Items drawn for each of B queries, k independent draws each, from softmax(β·score).

    Nothing here has a gradient. Where a query has nothing to draw from (an empty cache, or all of
    it masked), its rows and keys are −1, its log-partition −∞, and the rest is filler.

    Attributes:
        rows: Rows of the cache.
        keys: Keys of the items.
        features: What the items are encoded from, `(B, k, …)` by name.
        embeddings: The items as cached: stale, and rounded to the cache's precision.
        ages: Commits since each was encoded.
        logits: β·score plus log-weight, as drawn from.
        log_partition: log Σ exp(logit) over all items of the cache that count for the query.
        uniforms: A uniform number for each draw, for estimators that throw dice of their own.
        mean_embedding: Σ p̃ⱼ Eⱼ over the same items, where it was asked for.
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

    @classmethod
    def of(
        cls,
        rows: Int64[Tensor, "batch k"],
        keys: Int64[Tensor, " n"],
        ages: Int64[Tensor, " n"],
        items: KeptRows,
        logits: Float32[Tensor, "batch k"],
        log_partition: Float32[Tensor, " batch"],
        uniforms: Float32[Tensor, "batch k"],
        mean_embedding: Float32[Tensor, "batch dim"] | None,
    ) -> Draw:
        """A draw of items in one line, those of the first query first."""

        def by_query(values: Tensor) -> Tensor:
            return values.view(*rows.shape, *values.shape[1:])

        return cls(
            rows,
            by_query(keys),
            {name: by_query(values) for name, values in items.features.items()},
            by_query(items.embeddings()),
            by_query(ages),
            logits,
            log_partition,
            uniforms,
            mean_embedding,
        )

    @property
    def num(self) -> int:
        """Draws of each query."""
        return self.rows.shape[1]

    def items(self) -> HeldItems:
        """The drawn items in one line, those of the first query first."""
        flat = {name: values.flatten(0, 1) for name, values in self.features.items()}
        return HeldItems(self.rows.flatten(), self.keys.flatten(), flat)
