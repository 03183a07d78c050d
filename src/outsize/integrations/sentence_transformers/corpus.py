"""A corpus of texts as the feed of a cache: all of it, encoded before the first step that draws."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import repeat
from numbers import Integral
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
from outsize.ranks.agreement import require_same_on_all_ranks
from outsize.ranks.collectives import any_rank, world_size
from outsize.ranks.failures import failing_in_group
from outsize.ranks.gathering import gather_keys
from outsize.suggestions import shortened

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
        # A set has no order that other ranks, or a resumed run, would repeat.
        if isinstance(corpus, str | bytes | Set) or not isinstance(corpus, Iterable):
            raise DataError(
                "the corpus must be a list of texts, or a dictionary of texts by id, but got "
                f"{type(corpus).__name__}"
            )
        texts: Any = corpus.values() if isinstance(corpus, Mapping) else corpus
        if hasattr(texts, "to_pylist"):  # a column of a pyarrow table
            texts = texts.to_pylist()
        self._texts: Sequence[Any] = texts if isinstance(texts, Sequence) else list(texts)
        if not len(self._texts):
            raise ConfigError("the corpus has no texts: give some, or None to cache positives")
        self._ids: Sequence[int] | None = None
        if by_id:
            self._ids = _whole(corpus) if isinstance(corpus, Mapping) else range(len(self._texts))
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
        if world_size() > 1:  # each encodes the texts at other places
            facts = f"a corpus of {len(self):,} texts with hash {self._hash_in_order()}"
            require_same_on_all_ranks(facts)
        for places in self._shares(cache):
            with failing_in_group(cache.ranks, cache.device):
                column = self._tokenized(places, cache.device)
                features = self._features(column)
                keys = column.keys() if self._ids is None else self._ids_at(places, cache.device)
                with torch.no_grad(), evaluation_mode(self._encode):
                    embeddings = self._encode(features).float()
            cache.push(features, embeddings, keys)

    def feed(  # noqa: D102
        self, cache: ItemCache, positives: HeldItems, embeddings: Tensor
    ) -> PushReport:
        return PushReport(0, 0, 0)

    def _shares(self, cache: ItemCache) -> Iterator[range]:
        """The places of this rank's texts, in parts; as many parts on every rank."""
        rank, size = cache.shard.index, cache.shard.count
        num_parts = -(-len(self._texts) // (size * _TEXTS_AT_ONCE))
        for part in range(num_parts):
            places = range(rank + part * size * _TEXTS_AT_ONCE, len(self._texts), size)
            yield places[:_TEXTS_AT_ONCE]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the texts in any order, with ids of their own."""
        total = sum(int.from_bytes(line, "little") for line in self._hashes())
        return f"{total % (1 << 64):016x}"

    def _hash_in_order(self) -> str:
        found = hashlib.blake2b(digest_size=6)
        for line in self._hashes():
            found.update(line)
        return found.hexdigest()

    def _hashes(self) -> Iterator[bytes]:
        """A hash of each text, with its id if it has one of its own."""
        ids = repeat("") if self._ids is None else self._ids
        for id_, text in zip(ids, self._texts, strict=False):  # `repeat` has no end
            line = f"{id_}\0{text}".encode("utf-8", "replace")
            yield hashlib.blake2b(line, digest_size=8).digest()

    def _ids_at(self, places: range, device: torch.device) -> Int64[Tensor, " n"]:
        assert self._ids is not None
        return torch.tensor([self._ids[place] for place in places], dtype=torch.int64).to(device)

    def _tokenized(self, places: range, device: torch.device) -> Column:
        # Without texts, one stands in, and nothing of it is used.
        asked = [self._text_at(place) for place in places or range(1)]
        model: Any = unwrapped(self._model)
        options = {} if self._task is None else {"task": self._task}
        inputs = model.preprocess(asked, prompt=self._prompt, **options) | options
        moved = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in inputs.items()
        }
        return as_column(moved).first(len(places))

    def _text_at(self, place: int) -> str:
        text = self._texts[place]
        if not isinstance(text, str):
            is_record = isinstance(text, Mapping)
            way_out = "give one of its columns" if is_record else "leave it out, or give a text"
            raise DataError(
                f"the corpus must hold texts, but its entry {place:,} is "
                f"{shortened(repr(text))}: {way_out}"
            )
        return text


def warn_if_foreign(cache: ItemCache, keys: Int64[Tensor, " n"]) -> None:
    """Warn if a cache holds none of the positives of a batch. All ranks call it."""
    of_all_ranks = gather_keys(keys, cache.ranks)[0]
    is_held = torch.isin(of_all_ranks, cache.tensors_here()["keys"]).any()
    if not any_rank(bool(is_held), cache.device):
        warnings.warn(
            f"none of the {len(of_all_ranks):,} positives of the first batch is in the corpus: "
            "they are trained on, but are not in the cache, and a text of the corpus that says the "
            "same is a negative; give the corpus the same texts, prompt and ids",
            stacklevel=2,
        )


def _whole(ids: Iterable[Any]) -> list[int]:
    """Ids of texts, if they can be keys."""
    found = list(ids)
    for id_ in found:
        if not isinstance(id_, Integral) or not 0 <= int(id_) < 1 << 63:
            raise DataError(
                f"ids of texts must be whole numbers from 0, but got {shortened(repr(id_))}: "
                "number the texts"
            )
    return found
