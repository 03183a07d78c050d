"""Reading large JSON files piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outsize.errors import DataError, one_line
from outsize.interrupts import check_stop

_BLOCK_CHARACTERS = 1 << 22
_SPACE = re.compile(r"[ \t\r\n]*")
_AFTER_VALUES = tuple(" \t\r\n,:]}")
_DECODER = json.JSONDecoder()


class JsonStream:
    """A JSON object in a file, read member by member.

    Only one member, or one element of a list that is streamed, is in memory at a time.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def members(self, *lists: str) -> Iterator[tuple[str, Any]]:
        """The members of the object.

        A member whose name is in `lists` is a list, and comes as one `(name, element)` for each of
        its elements.
        """
        try:
            with self._path.open(encoding="utf-8") as file:
                yield from _Reader(file).members(lists)
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{self._path} is not readable JSON: {one_line(error, 200)}") from None


class _Reader:
    def __init__(self, file: Any) -> None:
        self._file = file
        self._text = ""
        self._at = 0
        self._is_over = False
        self._is_flat = True

    def members(self, lists: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        self._expect("{")
        if self._next() == "}":
            return
        while True:
            name = self._value()
            if not isinstance(name, str):
                raise ValueError("the name of a member is missing")
            self._expect(":")
            if name in lists:
                for element in self._elements():
                    yield name, element
            else:
                yield name, self._value()
            if self._take() == "}":
                return

    def _elements(self) -> Iterator[Any]:
        self._expect("[")
        if self._next() == "]":
            self._at += 1
            return
        while True:
            yield from self._many()
            yield self._value()
            if self._take() == "]":
                return

    def _many(self) -> Iterator[Any]:
        """The flat objects that are in memory, but the last: parsed at once, which is faster."""
        if not self._is_flat:
            return
        limit = self._text.find("]", self._at)
        last = self._text.rfind("{", self._at, limit if limit >= 0 else len(self._text))
        end = self._text.rfind("}", self._at, max(last, self._at)) + 1
        if end <= self._at:
            return
        try:
            found = json.loads(f"[{self._text[self._at : end]}]")
        except ValueError:
            self._is_flat = False
            return
        self._at = end
        yield from found
        self._expect(",")

    def _value(self) -> Any:
        self._next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                # What follows a whole value; else a number may go on.
                if self._is_over or self._text[end : end + 1] in _AFTER_VALUES:
                    self._at = end
                    return value
            except ValueError:
                if self._is_over:
                    raise
            self._read()

    def _next(self) -> str:
        """The next character that is no space."""
        while True:
            found = _SPACE.match(self._text, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if self._is_over:
                raise ValueError("it ends too early")
            self._read()

    def _take(self) -> str:
        found = self._next()
        if found not in ",]}":
            raise ValueError(f"{found!r} is in the wrong place")
        self._at += 1
        return found

    def _expect(self, character: str) -> None:
        if self._next() != character:
            raise ValueError(f"{character!r} is missing")
        self._at += 1

    def _read(self) -> None:
        check_stop()
        block = self._file.read(max(_BLOCK_CHARACTERS, len(self._text) - self._at))
        self._text = self._text[self._at :] + block
        self._at = 0
        self._is_over = not block
