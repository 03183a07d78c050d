"""Tokenizers: from texts to matrices of token ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int32
from numpy.typing import NDArray
from torch import Tensor

from outsize.json_files import SchemaError, Whole, check
from outsize.models.text.words import pieces_of, words_of
from outsize.text_bytes import as_bytes, from_bytes

PADDING = -1
_EMPTY = 0  # the token of a text without words
_FIRST_WORD = 1
_MAX_REMEMBERED = 1 << 20
_PIECE_SCALE = 1 / 3  # an unknown word has about nine pieces, a known one is one token
_SCHEMA = {"num_buckets": Whole(1), "max_tokens": Whole(1), "distinct": bool}


@dataclass(frozen=True)
class TokenMatrix:
    """The tokens of some texts.

    Attributes:
        ids: `(n, longest)` token ids, padded with −1.
        num_cut: Texts with more tokens than the model takes, of which the first ones are left.
    """

    ids: Int32[Tensor, "n longest"]
    num_cut: int


class Tokenizer(ABC):
    """Turns texts into token ids.

    Attributes:
        num_tokens: Ids are `0 … num_tokens − 1`.
        max_tokens: Tokens per text at most.
    """

    num_tokens: int
    max_tokens: int

    @abstractmethod
    def encode(self, texts: Sequence[str], is_query: bool) -> TokenMatrix:
        """The tokens of queries, or of items; at least one of each text."""

    @abstractmethod
    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The tokenizer as plain values and tensors, for an export."""


class WordTokenizer(Tokenizer):
    """Words of a vocabulary, and hashed pieces of all others.

    A known word is one token. An unknown one is several: buckets of the word and of its character
    trigrams (`pieces_of`), so that rare words and their variants still match.

    Args:
        words: The vocabulary; the ids of words follow 0, which stands for a text without words.
        weights: The initial weight of each token, the rarer the larger; `(num_tokens,)`.
        num_buckets: Buckets of pieces.
        max_tokens: Tokens per text at most.
        distinct: Whether a token counts once per text, as in a bag of words.
    """

    def __init__(
        self,
        words: Sequence[str],
        weights: NDArray[np.float32],
        num_buckets: int,
        max_tokens: int,
        distinct: bool,
    ) -> None:
        self._ids = {word: (i,) for i, word in enumerate(words, _FIRST_WORD)}
        self._first_bucket = _FIRST_WORD + len(words)
        self.words = words
        self.weights = weights
        self.num_buckets, self.max_tokens, self.distinct = num_buckets, max_tokens, distinct
        self.num_tokens = self._first_bucket + num_buckets
        self._pieces: dict[str, tuple[int, ...]] = {}

    @classmethod
    def learn(
        cls,
        texts: Iterable[str],
        *,
        max_words: int,
        min_count: int,
        num_buckets: int,
        max_tokens: int,
        distinct: bool,
    ) -> WordTokenizer:
        """Learn a vocabulary from texts.

        Args:
            texts: The texts, read once.
            max_words: Words of the vocabulary at most: those that most texts have.
            min_count: Texts that a word of the vocabulary occurs in at least.
            num_buckets: As for the constructor, like the arguments after it.
            max_tokens: Tokens per text at most.
            distinct: Whether a token counts once per text.
        """
        counts: Counter[str] = Counter()
        num_texts = 0
        for text in texts:
            counts.update(set(words_of(text)))
            num_texts += 1
        # By count and then by spelling, so that the order of texts does not matter.
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        frequent = [(word, n) for word, n in ordered[:max_words] if n >= min_count]
        words = [word for word, _ in frequent]
        in_buckets = np.zeros(num_buckets, np.int64)
        for word, count in ordered[len(words) :]:
            in_buckets[list(pieces_of(word, num_buckets))] += count
        of_words = np.array([count for _, count in frequent], np.int64)
        weights = np.concatenate(
            (
                np.ones(1),
                _rarity(of_words, num_texts),
                _rarity(in_buckets, num_texts) * _PIECE_SCALE,
            )
        )
        return cls(words, weights.astype(np.float32), num_buckets, max_tokens, distinct)

    def encode(self, texts: Sequence[str], is_query: bool = False) -> TokenMatrix:  # noqa: D102
        return padded([self.tokens_of(text) for text in texts], self.max_tokens)

    def tokens_of(self, text: str) -> list[int]:
        """All tokens of a text, in their order."""
        known, found = self._ids, list[int]()
        for word in words_of(text):
            found.extend(known.get(word) or self._pieces_of(word))
        if self.distinct:
            found = list(dict.fromkeys(found))
        return found or [_EMPTY]

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The settings, and the vocabulary as bytes."""
        facts = {
            "num_buckets": self.num_buckets,
            "max_tokens": self.max_tokens,
            "distinct": self.distinct,
        }
        return facts, {
            **as_bytes(self.words, "words"),
            "weights": torch.from_numpy(self.weights),
        }

    @classmethod
    def from_state(cls, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> WordTokenizer:
        """The inverse of `state`; raises a `SchemaError` for what no tokenizer has written."""
        check(dict(facts), _SCHEMA)
        for name, dtype in (("words", torch.uint8), ("ends", torch.int64),
                            ("weights", torch.float32)):  # fmt: skip
            if name not in tensors or tensors[name].dtype != dtype or tensors[name].dim() != 1:
                raise SchemaError(f"no tensor {name!r} of {dtype}")
        try:
            words = from_bytes(tensors["words"], tensors["ends"])
        except UnicodeDecodeError:
            raise SchemaError("words are not in UTF-8") from None
        except ValueError:
            raise SchemaError("the ends of words do not fit their bytes") from None
        made = cls(words, tensors["weights"].numpy(), **facts)
        if len(made.weights) != made.num_tokens:
            raise SchemaError(f"{len(made.weights):,} weights of {made.num_tokens:,} tokens")
        return made

    def _pieces_of(self, word: str) -> tuple[int, ...]:
        found = self._pieces.get(word)
        if found is None:
            first = self._first_bucket
            found = tuple(first + bucket for bucket in pieces_of(word, self.num_buckets))
            if len(self._pieces) < _MAX_REMEMBERED:
                self._pieces[word] = found
        return found


def _rarity(counts: NDArray[np.int64], num_texts: int) -> NDArray[np.float64]:
    """The smoothed inverse document frequency."""
    rarity: NDArray[np.float64] = np.log((1 + num_texts) / (1 + counts.clip(max=num_texts))) + 1
    return rarity


def padded(tokens: Sequence[Sequence[int]], max_tokens: int) -> TokenMatrix:
    """Lists of tokens as a matrix as wide as the longest, of `max_tokens` columns at most."""
    lengths = np.array([len(line) for line in tokens], np.int64)
    width = int(lengths.clip(max=max_tokens).max(initial=1))
    ids = np.full((len(tokens), width), PADDING, np.int32)
    for row, line in enumerate(tokens):
        cut = line[:max_tokens]
        ids[row, : len(cut)] = cut
    return TokenMatrix(torch.from_numpy(ids), int((lengths > max_tokens).sum()))


def encode_all(
    tokenizer: Tokenizer,
    batches: Iterable[Sequence[str]],
    is_query: bool,
    advance: Callable[[int], None] = lambda count: None,
) -> TokenMatrix:
    """The tokens of texts that come in batches, as one matrix as wide as the longest.

    Besides the matrix itself, its batches are held, each as wide as its own longest text.
    """
    parts, num_cut = [], 0
    for texts in batches:
        found = tokenizer.encode(texts, is_query)
        parts.append(found.ids)
        num_cut += found.num_cut
        advance(len(texts))
    width = max((part.shape[1] for part in parts), default=1)
    num_texts = sum(len(part) for part in parts)
    ids = torch.full((num_texts, width), PADDING, dtype=torch.int32)
    first = 0
    for part in parts:
        ids[first : first + len(part), : part.shape[1]] = part
        first += len(part)
    return TokenMatrix(ids, num_cut)
