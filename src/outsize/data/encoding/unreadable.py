"""Bytes that are no UTF-8, made visible.

A parser of columns gives up at such bytes in a row it wants to report. So they are replaced on the
way in by a character that stands for nothing else, and found again in the values.
"""

from __future__ import annotations

import codecs
from typing import Any

UNREADABLE = "\ufdd0"  # one of Unicode's noncharacters: no text that is interchanged holds it
_HANDLER = "outsize-unreadable"


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return UNREADABLE, error.end


codecs.register_error(_HANDLER, _replace)


class ReadableStream:
    """A stream of bytes in which all that is no UTF-8 reads as `UNREADABLE`.

    Args:
        raw: Anything with `read`.
    """

    closed = False

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._decoder = codecs.getincrementaldecoder("utf-8")(_HANDLER)
        self._is_within_character = False
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes; none at the end."""
        while not self._rest:
            data: bytes = self._raw.read(size)
            if data and data.isascii() and not self._is_within_character:
                return data
            self._rest = self._decoder.decode(data, final=not data).encode()
            self._is_within_character = bool(self._decoder.getstate()[0])
            if not data:
                break
        size = len(self._rest) if size < 0 else size
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece

    def close(self) -> None:
        """Close nothing: the raw stream belongs to whoever opened it."""
        self.closed = True
