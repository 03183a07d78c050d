"""Replacing invalid UTF-8 by a marker character, so that such rows can be reported.

pyarrow's CSV parser fails at invalid bytes in a row that it reports as malformed. They are
therefore replaced, before parsing, by a character that occurs in no text, and found again in the
values.
"""

from __future__ import annotations

import codecs
from typing import Any

UNREADABLE = "\ufdd0"  # a Unicode noncharacter, which does not occur in text
_HANDLER = "outsize-unreadable"


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return UNREADABLE, error.end


codecs.register_error(_HANDLER, _replace)


class ReadableStream:
    """A stream of bytes in which invalid UTF-8 is replaced by `UNREADABLE`.

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
        """Read up to `size` bytes; empty at the end."""
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
        """Do nothing: the raw stream is closed by its owner."""
        self.closed = True
