"""The interface of models that encode texts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float32
from torch import Tensor

from outsize.collection import FeatureInput
from outsize.errors import ConfigError
from outsize.models.retrieval_model import RetrievalModel, RetrievalModelConfig
from outsize.models.text.tokenizer import Tokenizer

QUERY_TOKENS, ITEM_TOKENS = "query_tokens", "item_tokens"
"""The features of queries and of items: `(n, length)` token ids padded with −1."""

_TEXTS_AT_ONCE = 256


class TextModel(RetrievalModel):
    """A retrieval model whose queries and items are texts.

    Attributes:
        tokenizer: How texts become tokens; set by `use_tokenizer`, and must fit the embeddings.
    """

    query_features: tuple[str, ...] = (QUERY_TOKENS,)
    item_features: tuple[str, ...] = (ITEM_TOKENS,)
    tokenizer: Tokenizer | None = None

    def encode_query_texts(
        self, texts: Sequence[str], batch_size: int = _TEXTS_AT_ONCE
    ) -> Float32[Tensor, "n dim"]:
        """The vectors of queries, in evaluation mode and without gradients.

        Args:
            texts: The queries.
            batch_size: Texts that are encoded at a time.
        """
        return self._encode_texts(texts, batch_size, self.encode_queries, QUERY_TOKENS)

    def encode_item_texts(
        self, texts: Sequence[str], batch_size: int = _TEXTS_AT_ONCE
    ) -> Float32[Tensor, "n dim"]:
        """The vectors of items, likewise."""
        return self._encode_texts(texts, batch_size, self.encode_items, ITEM_TOKENS)

    def item_text(self, name: str) -> str:
        """The text of an item of the training data, by its id."""
        found: str = self._texts.item_text(name)
        return found

    def item_facts(self, name: str) -> dict[str, str | int]:
        """What else is known of an item, by its id, such as its "file" and "line"."""
        found: dict[str, str | int] = self._texts.item_facts(name)
        return found

    @property
    def _texts(self) -> Any:
        if not hasattr(self.searcher, "item_text"):
            raise ConfigError(
                "this model has no items: export its run, and load it with outsize.load_exported"
            )
        return self.searcher

    @torch.no_grad()
    def _encode_texts(
        self,
        texts: Sequence[str],
        batch_size: int,
        encode: Callable[[Mapping[str, FeatureInput]], Tensor],
        feature: str,
    ) -> Float32[Tensor, "n dim"]:
        if isinstance(texts, str):
            raise ConfigError("give a list of texts, such as [text]: a single text has letters")
        if self.tokenizer is None:
            raise ConfigError("this model has no tokenizer: call use_tokenizer first")
        was_training = self.training
        self.eval()
        device = self.device
        parts = [torch.zeros(0, self.dim)]
        try:
            for first in range(0, len(texts), batch_size):
                chosen = texts[first : first + batch_size]
                ids = self.tokenizer.encode(chosen, feature == QUERY_TOKENS).ids
                parts.append(encode({feature: ids.long().to(device)}).float().cpu())
        finally:
            self.train(was_training)
        return torch.cat(parts)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        tensors = (*self.parameters(), *self.buffers())
        return next((tensor.device for tensor in tensors), torch.device("cpu"))


class TextModelConfig(RetrievalModelConfig):
    """The configuration of a model that encodes texts."""

    reads_texts: ClassVar[bool] = True

    @abstractmethod
    def build_tokenizer(self, texts: Callable[[], Iterable[str]]) -> Tokenizer:
        """The tokenizer of the model.

        Args:
            texts: Yields the texts that a vocabulary is learned from: training queries and all
                items.
        """

    @property
    @abstractmethod
    def tables(self) -> tuple[str, str] | None:
        """The tables of the tokens of queries and of items; `None` for a model with its own."""

    @property
    def has_tables(self) -> bool:  # noqa: D102
        return self.tables is not None

    def features_of(self, known: Sequence[str], side: str) -> tuple[str, ...]:  # noqa: D102
        return (QUERY_TOKENS,) if side == "query" else (ITEM_TOKENS,)
