"""Settings of a cache of texts."""

from __future__ import annotations

from dataclasses import dataclass

from outsize.bounds import require_at_least
from outsize.errors import ConfigError
from outsize.negatives.cache.precision import PRECISIONS
from outsize.registries import require_known

KEYS = ("tokens", "label")


@dataclass(frozen=True)
class TextCacheSettings:
    """What a cache of texts holds, and how it is refreshed.

    Attributes:
        num_items: Capacity in texts over all ranks, for a cache of recent positives. A cache with a
            corpus has room for all of it.
        corpus_size: Number of distinct texts that positives come from, if the cache holds recent
            positives. Each then stands for corpus_size / held texts (the 1/α of the paper).
        num_refreshed: Texts re-encoded per optimizer step over all ranks, the oldest first, besides
            the positives and the drawn ones.
        warmup_steps: Optimizer steps with in-batch and hard negatives only.
        precision: How embeddings are stored: "float32", "bfloat16" or "int8".
        max_tokens: Stored tokens per text; by default the model's `max_seq_length`.
        chunk_size: Texts per forward pass without gradients: filling and refreshing.
        corpus_prompt: The prompt that the corpus is encoded with: that of the positive column.
        keys: What identifies a text: "tokens" (a hash of its tokens) or "label" (the ids in the
            label column: one per pair, or one for each positive and negative).
        seed: Seed of the draws.
    """

    num_items: int = 65_536
    corpus_size: int | None = None
    num_refreshed: int = 32
    warmup_steps: int = 0
    precision: str = "bfloat16"
    max_tokens: int | None = None
    chunk_size: int = 128
    corpus_prompt: str | None = None
    keys: str = "tokens"
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, 1, "num_items", "corpus_size", "max_tokens", "chunk_size")
        require_at_least(self, 0, "num_refreshed", "warmup_steps")
        require_known("precision", self.precision, PRECISIONS)
        if self.keys not in KEYS:
            raise ConfigError(f"keys must be one of {', '.join(KEYS)}, but got {self.keys!r}")
