"""Mapping the values of a column to ids: by a vocabulary, a hash, or a remainder.

A chunk of a column is dictionary-encoded: distinct values, and a code for each row. All work is
done once per distinct value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.data.encoding.id_counts import KeyCounts
from outsize.data.encoding.text_keys import Column, text_buffers, text_keys, words_at
from outsize.hashing import derive_seed, draw_hashes, hash_ids

UNKNOWN = 0


@dataclass(frozen=True)
class CodedText:
    """Rows of a text column.

    Attributes:
        codes: For each row, the index of its value in `values`; −1 if it is missing.
        values: The distinct values, a pyarrow array of strings without nulls.
    """

    codes: NDArray[np.int64]
    values: Column

    @classmethod
    def concatenate(cls, parts: Sequence[CodedText]) -> CodedText:
        """The rows of several chunks of a column, with one dictionary."""
        import pyarrow as pa

        empty = pa.array([], pa.large_string())
        coded = pa.concat_arrays([empty, *(part.values for part in parts)]).dictionary_encode()
        numbers = coded.indices.to_numpy(zero_copy_only=False)
        codes, first = [np.zeros(0, np.int64)], 0
        for part in parts:
            own = numbers[first : first + len(part.values)]
            codes.append(np.append(own, -1)[part.codes])
            first += len(own)
        return cls(np.concatenate(codes).astype(np.int64), coded.dictionary)

    def take(self, mask: NDArray[np.bool_]) -> CodedText:
        """The rows selected by a mask."""
        return CodedText(self.codes[mask], self.values)

    def value_counts(self) -> NDArray[np.int64]:
        """The number of rows with each value."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.values))


class IdEncoder(ABC):
    """Maps the distinct values of a column to ids.

    Attributes:
        num_ids: Size of the vocabulary, including the unknown id; set by `finish`.
    """

    num_ids: int

    def observe(  # noqa: B027  most need no first pass
        self, values: Column, counts: NDArray[np.int64]
    ) -> None:
        """Observe values in the first pass, with their numbers of occurrences."""

    def finish(self) -> None:  # noqa: B027
        """End the first pass."""

    @abstractmethod
    def ids_of(self, values: Column) -> NDArray[np.int64]:
        """The id of each value."""


class KeyedIds(IdEncoder):
    """Ids that depend on the 64-bit key of a value alone."""

    def ids_of(self, values: Column) -> NDArray[np.int64]:  # noqa: D102
        return self.ids_of_keys(text_keys(values))

    @abstractmethod
    def ids_of_keys(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The id of each value, given its key."""


class VocabularyIds(KeyedIds):
    """Ids by descending frequency: 1 is the most frequent value; ties are ordered by key.

    Attributes:
        counts: How often each value occurs.
    """

    def __init__(self, min_count: int, max_ids: int) -> None:
        self._min_count = min_count
        self._max_ids = max_ids
        self.counts = KeyCounts()
        self._keys: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._ids: NDArray[np.int32] = np.zeros(0, np.int32)

    def observe(self, values: Column, counts: NDArray[np.int64]) -> None:  # noqa: D102
        present = counts > 0
        self.counts.add(text_keys(values)[present], counts[present])

    def finish(self) -> None:  # noqa: D102
        self.counts.merge()
        keys, counts = self.counts.keys, self.counts.counts
        self.counts = KeyCounts()
        enough = counts >= self._min_count
        keys, counts = keys[enough], counts[enough]
        order = np.argsort(-counts, kind="stable")
        if self._max_ids:
            order = order[: self._max_ids]
        ids = np.zeros(len(keys), np.int32)
        ids[order] = np.arange(1, len(order) + 1, dtype=np.int32)
        self._keys, self._ids = keys[ids > 0], ids[ids > 0]
        self.num_ids = len(self._keys) + 1

    def keys_by_id(self) -> NDArray[np.uint64]:
        """The keys of the ids `1, 2, …`."""
        keys = np.zeros(len(self._keys), np.uint64)
        keys[self._ids - 1] = self._keys
        return keys

    def set_keys(self, keys: NDArray[np.uint64]) -> None:
        """Take a vocabulary as `keys_by_id` returned it, instead of a first pass."""
        order = np.argsort(keys)
        self._keys, self._ids = keys[order], (order + 1).astype(np.int32)
        self.num_ids = len(keys) + 1

    def ids_of_keys(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:  # noqa: D102
        return values_of_keys(keys, self._keys, self._ids, UNKNOWN)


class HashedIds(KeyedIds):
    """Ids `1 … num_buckets` by a universal hash: no vocabulary, but collisions.

    Attributes:
        hashes: The numbers of the hash function, `(1, 9)`.
    """

    def __init__(self, column: str, num_buckets: int) -> None:
        self.hashes = draw_hashes(1, derive_seed(0, "ids", column))
        self._num_buckets = num_buckets
        self.num_ids = num_buckets + 1

    def ids_of_keys(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:  # noqa: D102
        words = torch.from_numpy(keys.view(np.int64))
        buckets: NDArray[np.int64] = hash_ids(words, self.hashes, self._num_buckets)[:, 0].numpy()
        return buckets + 1


class ModulusIds(IdEncoder):
    """For hexadecimal values of up to 8 digits: the id is 1 + (number mod `modulus`)."""

    def __init__(self, modulus: int) -> None:
        self._modulus = modulus
        self.num_ids = modulus + 1

    def ids_of(self, values: Column) -> NDArray[np.int64]:  # noqa: D102
        data, starts, lengths = text_buffers(values)
        characters = words_at(data, starts, lengths).view(np.uint8).reshape(-1, 8)
        digits = _HEX[characters]
        inside = np.arange(8) < lengths[:, None]
        valid = ((digits >= 0) | ~inside).all(1) & (lengths > 0) & (lengths <= 8)
        numbers = np.zeros(len(lengths), np.int64)
        for place in range(8):
            grown = numbers * 16 + digits[:, place]
            numbers = np.where(inside[:, place], grown, numbers)
        return np.where(valid, 1 + numbers % self._modulus, UNKNOWN)


_HEX = np.full(256, -1, np.int64)
for _value, _digit in enumerate("0123456789abcdef"):
    _HEX[ord(_digit)] = _HEX[ord(_digit.upper())] = _value


def values_of_keys(
    keys: NDArray[Any], known: NDArray[Any], values: NDArray[Any], absent: int
) -> NDArray[np.int64]:
    """The value of each key by ascending known keys; `absent` for those that are not known."""
    found = np.full(len(keys), absent, np.int64)
    if len(known):
        order = np.argsort(keys)  # sequential instead of random access to what is known
        places = np.searchsorted(known, keys[order]).clip(max=len(known) - 1)
        found[order] = np.where(known[places] == keys[order], values[places], absent)
    return found


def row_ids(text: CodedText, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The id of each row, given those of the distinct values; unknown if the value is missing."""
    return np.append(ids, UNKNOWN)[text.codes]  # a code of −1 selects the last


@dataclass(frozen=True)
class Bags:
    """The values of a multi-valued column, split once per distinct text.

    Attributes:
        text: The rows; a code points to a distinct text.
        tokens: The values of all distinct texts, concatenated and coded.
        lengths: Number of values of each distinct text.
    """

    text: CodedText
    tokens: CodedText
    lengths: NDArray[np.int64]

    @classmethod
    def split(cls, text: CodedText, separator: str, max_length: int) -> Bags:
        """Split texts at a separator; drops empty values, and those beyond `max_length`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        parts = pc.split_pattern(text.values.cast(pa.large_string()), separator)
        flat = parts.flatten()
        owner = np.repeat(
            np.arange(len(parts)), pc.list_value_length(parts).to_numpy(zero_copy_only=False)
        )
        filled = pc.not_equal(flat, "").to_numpy(zero_copy_only=False).astype(bool)
        owner = owner[filled]
        lengths = np.bincount(owner, minlength=len(parts))
        position = np.arange(len(owner)) - (np.cumsum(lengths) - lengths)[owner]
        short = position < max_length if max_length else np.ones(len(owner), bool)
        coded = flat.filter(pa.array(filled)).filter(pa.array(short)).dictionary_encode()
        tokens = CodedText(coded.indices.to_numpy().astype(np.int64), coded.dictionary)
        return cls(text, tokens, np.bincount(owner[short], minlength=len(parts)))

    def token_counts(self) -> NDArray[np.int64]:
        """How often each token occurs over all rows."""
        times = np.repeat(self.text.value_counts(), self.lengths)
        size = len(self.tokens.values)
        return np.bincount(self.tokens.codes, times, minlength=size).astype(np.int64)

    def rows(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The concatenated ids of all rows and their number per row, given the tokens' ids."""
        ids = row_ids(self.tokens, ids)
        starts = np.append(np.cumsum(self.lengths) - self.lengths, 0)[self.text.codes]
        lengths = np.append(self.lengths, 0)[self.text.codes]
        return ids[runs(starts, lengths)], lengths


def runs(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The concatenated ranges `starts[i] … starts[i] + lengths[i] − 1`."""
    before = np.cumsum(lengths) - lengths
    shifts: NDArray[np.int64] = np.repeat(starts - before, lengths)
    return np.arange(len(shifts)) + shifts
