"""64-bit keys of text values, which vocabularies store instead of the text.

Among n distinct values, the probability that any two share a key is below n² / 2⁶⁵: 3 in a million
for ten million values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.hashing import mix_bits

Column = Any  # a pyarrow array; pyarrow is imported where it is used

_WORD_BYTES = 8


def text_keys(values: Column) -> NDArray[np.uint64]:
    """A key for each value of a string or binary array without nulls."""
    data, starts, lengths = text_buffers(values)
    # Lengths are mixed, or "" and "\x01" would collide: a length could cancel the first byte.
    keys = mix_bits(torch.from_numpy(lengths.astype(np.int64))).numpy()
    longest = int(lengths.max(initial=0))
    for begin in range(0, max(1, longest), _WORD_BYTES):
        longer = slice(None) if begin == 0 else np.flatnonzero(lengths > begin)
        words = words_at(data, starts[longer] + begin, lengths[longer] - begin)
        mixed = torch.from_numpy((keys[longer] ^ words.view(np.int64)) + (begin + 1))
        keys[longer] = mix_bits(mixed).numpy()
    return keys.view(np.uint64)


def text_buffers(values: Column) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
    """The bytes of an array, padded for `words_at`, and the start and length of each value."""
    import pyarrow as pa

    values = values.cast(pa.large_binary())
    _, offsets, data = values.buffers()
    if offsets is None:
        return bytes(_WORD_BYTES), np.zeros(0, np.int64), np.zeros(0, np.int64)
    edges = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    low, high = (int(edges[0]), int(edges[-1])) if len(edges) else (0, 0)
    text = bytes(_WORD_BYTES) if data is None else data[low:high].to_pybytes() + bytes(_WORD_BYTES)
    return text, edges[:-1] - low, np.diff(edges)


def words_at(
    data: bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Up to 8 bytes from each start as a little-endian number; bytes past `lengths` are 0."""
    # A view of the 8 bytes at every address, so that one gather replaces a loop.
    view = np.ndarray((len(data) - _WORD_BYTES + 1,), "<u8", buffer=data, strides=(1,))
    missing = (_WORD_BYTES - np.minimum(lengths, _WORD_BYTES)).astype(np.uint64) * np.uint64(8)
    words = view[starts]
    shifted = np.where(missing < 64, (words << (missing % 64)) >> (missing % 64), 0)
    return shifted.astype(np.uint64)
