"""A small text encoder that is trained from scratch.

    z = normalize(W · Σᵢ wᵢ xᵢ / Σᵢ wᵢ)

where x are the vectors of a text's tokens, passed through self-attention layers if there are any,
and w the inverse document frequency of each token. The length of a token's vector is learned, and
so is the weight that it has in the end. Before training, scores of a model without layers are
those of TF-IDF, up to the noise of random vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from outsize.bounds import require_at_least
from outsize.collection import EmbeddingCollection, FeatureInput
from outsize.contracts import Bag
from outsize.errors import ConfigError, DataError
from outsize.models.requirements import require_positive
from outsize.models.text.groups import TEXTS_AT_ONCE
from outsize.models.text.self_attention import SelfAttention
from outsize.models.text.text_model import ITEM_TOKENS, QUERY_TOKENS, TextModel, TextModelConfig
from outsize.models.text.tokenizer import Tokenizer, WordTokenizer

_MAX_LAYERS = 64


@dataclass(frozen=True)
class TextConfig(TextModelConfig):
    """Shape of a text encoder, and of its vocabulary.

    Attributes:
        dim: Width of the vectors of queries and items. Token vectors are `embeddings.dim` wide;
            where that is another width, or there are layers, a linear layer leads to `dim`.
        layers: Layers of self-attention; without any, a text is a bag of distinct tokens.
        heads: Heads of each layer; they divide `embeddings.dim`.
        shared: Whether queries and items share one table and the same layers.
        normalize: Whether vectors are normalized to length 1, so that scores are cosines.
        max_words: Words of the vocabulary at most: those that most training texts have.
        min_count: Training texts that a word of the vocabulary occurs in at least.
        num_buckets: Buckets that the pieces of all other words are hashed to.
        max_tokens: Tokens per text at most; longer texts are cut.
    """

    dim: int = 256
    layers: int = 0
    heads: int = 4
    shared: bool = True
    normalize: bool = True
    max_words: int = 50_000
    min_count: int = 3
    num_buckets: int = 30_000
    max_tokens: int = 256

    def __post_init__(self) -> None:
        for name in ("dim", "heads", "min_count", "num_buckets", "max_tokens"):
            require_positive(name, getattr(self, name))
        require_at_least(self, 0, "layers", "max_words")
        if self.layers > _MAX_LAYERS:
            raise ConfigError(f"layers must be {_MAX_LAYERS} at most, but got {self.layers}")

    def build_tokenizer(self, texts: Callable[[], Iterable[str]]) -> WordTokenizer:  # noqa: D102
        return WordTokenizer.learn(
            texts(),
            max_words=self.max_words,
            min_count=self.min_count,
            num_buckets=self.num_buckets,
            max_tokens=self.max_tokens,
            distinct=self.layers == 0,
        )

    def load_tokenizer(  # noqa: D102
        self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> WordTokenizer:
        return WordTokenizer.from_state(facts, tensors)

    @property
    def tables(self) -> tuple[str, str]:  # noqa: D102
        return ("tokens", "tokens") if self.shared else (QUERY_TOKENS, ITEM_TOKENS)

    def build(  # noqa: D102
        self,
        embeddings: EmbeddingCollection,
        query_features: Sequence[str],
        item_features: Sequence[str],
        seed: int,
        numbers: Sequence[str] = (),
    ) -> TextEncoder:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)  # layers of torch draw from the global generator
            return TextEncoder(embeddings, self)


class TextEncoder(TextModel):
    """Encodes queries and items from the vectors of their tokens.

    Args:
        embeddings: The features `query_tokens` and `item_tokens`, pooled by sums, with −1 as
            padding.
        config: Its shape.
    """

    def __init__(self, embeddings: EmbeddingCollection, config: TextConfig) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.dim, self.normalize = config.dim, config.normalize
        widths = {f.name: embeddings.spec_of(f).dim for f in embeddings.features}
        self.query_tower = _Tower(widths[QUERY_TOKENS], config)
        self.item_tower = None if config.shared else _Tower(widths[ITEM_TOKENS], config)
        num_tokens = embeddings.spec_of(embeddings.features[0]).num_rows
        self.token_weights: Tensor
        self.register_buffer("token_weights", torch.ones(num_tokens), persistent=False)

    def use_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Take a tokenizer with its weights of tokens."""
        assert isinstance(tokenizer, WordTokenizer)
        if len(tokenizer.weights) != len(self.token_weights):
            raise ConfigError(
                f"the tokenizer has {len(tokenizer.weights):,} tokens, but the model "
                f"{len(self.token_weights):,}"
            )
        super().use_tokenizer(tokenizer)
        self.token_weights.copy_(torch.from_numpy(tokenizer.weights))

    def encode_queries(self, inputs: Mapping[str, FeatureInput]) -> Float[Tensor, "batch dim"]:
        """The vectors of queries, given their tokens."""
        return self._encode(inputs, QUERY_TOKENS, self.query_tower)

    def encode_items(self, inputs: Mapping[str, FeatureInput]) -> Float[Tensor, "n dim"]:
        """The vectors of items, given their tokens."""
        tower = self.query_tower if self.item_tower is None else self.item_tower
        return self._encode(inputs, ITEM_TOKENS, tower)

    def _encode(
        self, inputs: Mapping[str, FeatureInput], feature: str, tower: _Tower
    ) -> Float[Tensor, "n dim"]:
        ids = inputs.get(feature)
        if not isinstance(ids, Tensor) or ids.dim() != 2:
            got = tuple(ids.shape) if isinstance(ids, Tensor) else type(ids).__name__
            raise DataError(f"feature {feature!r} is (n, length) token ids, but got {got}")
        is_token = ids >= 0
        weights = self.token_weights[ids.clamp(0, len(self.token_weights) - 1)] * is_token
        weights = weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-9)
        if tower.layers:
            pooled = self._mixed(ids, weights, feature, tower)
        else:
            found = self.embeddings({feature: Bag(ids, None, weights)}, only=(feature,))
            pooled = found[feature]
        encoded: Tensor = tower.output(pooled).float()
        return F.normalize(encoded, dim=1) if self.normalize else encoded

    def _mixed(
        self,
        ids: Int64[Tensor, "n length"],
        weights: Float[Tensor, "n length"],
        feature: str,
        tower: _Tower,
    ) -> Float[Tensor, "n width"]:
        """The weighted mean of the vectors of tokens, after the layers.

        Rows are read in one call, which is collective where ranks share them. Without gradients,
        the layers then see a few texts at a time.
        """
        is_token = ids >= 0
        flat = self.embeddings({feature: ids[is_token]}, only=(feature,))[feature]
        lengths = is_token.sum(dim=1)
        size = max(1, len(ids)) if torch.is_grad_enabled() else TEXTS_AT_ONCE
        parts = []
        for some, own, vectors in zip(
            is_token.split(size),
            weights.split(size),
            flat.split([int(part.sum()) for part in lengths.split(size)]),
            strict=True,
        ):
            mixed = tower.mix(_at_places(vectors, some), some)
            parts.append((mixed * own.unsqueeze(2)).sum(dim=1))
        return torch.cat(parts) if parts else flat[:0]


def _at_places(
    vectors: Float[Tensor, "tokens dim"], is_token: Bool[Tensor, "n length"]
) -> Float[Tensor, "n length dim"]:
    """The vectors of tokens at their places, and zeros elsewhere."""
    places = is_token.flatten().nonzero().flatten()
    nothing: Tensor = vectors.new_zeros(is_token.numel(), vectors.shape[1])
    return nothing.index_copy(0, places, vectors).view(*is_token.shape, vectors.shape[1])


class _Tower(nn.Module):
    """What follows the vectors of tokens."""

    def __init__(self, width: int, config: TextConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            SelfAttention(width, config.heads) for _ in range(config.layers)
        )
        if self.layers:
            self.positions = nn.Parameter(torch.randn(config.max_tokens, width) * 0.02)
        needs_output = config.layers or width != config.dim
        self.output = nn.Linear(width, config.dim, bias=False) if needs_output else nn.Identity()

    def mix(
        self, vectors: Float[Tensor, "n length dim"], is_token: Tensor
    ) -> Float[Tensor, "n length dim"]:
        """Pass the vectors of tokens through the layers."""
        mixed = vectors + self.positions[: vectors.shape[1]]
        for layer in self.layers:
            mixed = layer(mixed, is_token)
        return mixed
