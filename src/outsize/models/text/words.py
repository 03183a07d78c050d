"""Splitting texts into words, and words into pieces that also unknown words have in common."""

from __future__ import annotations

import re
import unicodedata
import zlib

_WORD = re.compile(r"[^\W_]+")
# Where a capital begins a word inside an identifier: aB, and the last capital of ABc.
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_MAX_PIECES = 24


def words_of(text: str) -> list[str]:
    """The words of a text in lower case; identifiers are split (`snake_case`, `camelCase`).

    Words are runs of letters and digits of any script, after Unicode normalization (NFKC).
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _WORD.findall(_HUMP.sub(" ", text).lower())


def pieces_of(word: str, num_buckets: int) -> tuple[int, ...]:
    """The buckets of a word and of its character trigrams, each once.

    The ends of the word take part, so that "art" is not inside "cart". Of a very long word, the
    first trigrams count.
    """
    marked = f"<{word}>"
    parts = [word, *(marked[i : i + 3] for i in range(min(len(marked) - 2, _MAX_PIECES)))]
    hashes = (zlib.crc32(part.encode("utf-8", "replace")) % num_buckets for part in parts)
    return tuple(dict.fromkeys(hashes))
