"""A corpus of texts as the feed of a cache: all of it, encoded before the first step that draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from outsize.errors import ConfigError, DataError
from outsize.integrations.sentence_transformers.encoders import unwrapped
from outsize.integrations.sentence_transformers.tokens import Column, as_column
from outsize.negatives.cache.contract import ItemCache, PushReport
from outsize.negatives.cache.draw import HeldItems
from outsize.negatives.cache.feeds import Feed
from outsize.negatives.contract import EncodeItems
from outsize.negatives.evaluation_mode import evaluation_mode
from outsize.ranks.failures import failing_in_group

Corpus = Sequence[str] | Mapping[int, str]
_TEXTS_AT_ONCE = 4096  # tokenized and pushed together


class TextCorpus(Feed):
    """Fills a cache with all texts of a corpus; each rank encodes a share of them.

    Args:
        corpus: Texts, or texts by id. The ids of a sequence are its positions.
        by_id: Whether ids are the keys of the texts; else a hash of their tokens is.
        prompt: The prompt that texts are encoded with.
    """

    needs_positives = False

    def __init__(self, corpus: Corpus, by_id: bool, prompt: str | None) -> None:
        self._texts = list(corpus.values()) if isinstance(corpus, Mapping) else corpus
        if not len(self._texts):
            raise ConfigError("the corpus has no texts: give some, or None to cache positives")
        if isinstance(self._texts, str) or not isinstance(self._texts[0], str):
            raise DataError("the corpus must be a list of texts, or a dictionary of texts by id")
        self._ids: Sequence[int] | None = None
        if by_id:
            self._ids = list(corpus) if isinstance(corpus, Mapping) else range(len(corpus))
        self._prompt = prompt

    def __len__(self) -> int:
        return len(self._texts)

    def connect(
        self,
        model: nn.Module,
        features: Callable[[Column], dict[str, Tensor]],
        encode: EncodeItems,
        task: str | None,
    ) -> None:
        """Say how texts are tokenized and encoded.

        Args:
            model: The model, which tokenizes.
            features: A column of texts → the features that the cache holds; refuses one that is
                tokenized differently from the positives.
            encode: Features → embeddings.
            task: The task of the positive column, for models with several encoders.
        """
        self._model, self._features, self._encode, self._task = model, features, encode, task

    def begin(self, cache: ItemCache) -> None:
        """Tokenize, encode and push all texts. All ranks push equally often."""
        for texts, ids in self._shares(cache):
            with failing_in_group(cache.ranks, cache.device):
                column = self._tokenized(texts, cache.device)
                features = self._features(column)
                keys = column.keys() if ids is None else ids.to(cache.device)
                if len(keys) and int(keys.min()) < 0:
                    raise DataError(f"ids of texts must be >= 0, but got {int(keys.min())}")
                with torch.no_grad(), evaluation_mode(self._encode):
                    embeddings = self._encode(features).float()
            cache.push(features, embeddings, keys)

    def feed(  # noqa: D102
        self, cache: ItemCache, positives: HeldItems, embeddings: Tensor
    ) -> PushReport:
        return PushReport(0, 0, 0)

    def _shares(
        self, cache: ItemCache
    ) -> Iterator[tuple[Sequence[str], Int64[Tensor, " n"] | None]]:
        """The texts of this rank in parts, with their ids if they have any."""
        rank, size = cache.shard.index, cache.shard.count
        num_parts = -(-len(self._texts) // (size * _TEXTS_AT_ONCE))
        for part in range(num_parts):
            places = range(rank + part * size * _TEXTS_AT_ONCE, len(self._texts), size)
            places = places[:_TEXTS_AT_ONCE]
            texts = [self._texts[place] for place in places]
            ids = None
            if self._ids is not None:
                ids = torch.tensor([self._ids[place] for place in places], dtype=torch.int64)
            yield texts, ids

    def _tokenized(self, texts: Sequence[str], device: torch.device) -> Column:
        # Without texts, one stands in, and nothing of it is used.
        asked: list[str] = list(texts) or [self._texts[0]]
        model: Any = unwrapped(self._model)
        options = {} if self._task is None else {"task": self._task}
        inputs = model.preprocess(asked, prompt=self._prompt, **options) | options
        moved = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in inputs.items()
        }
        return as_column(moved).first(len(texts))
