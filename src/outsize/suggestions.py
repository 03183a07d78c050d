"""Names in errors: what a misspelt one may have meant, and a few of very many."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MAX_COMPARED, _MAX_LETTERS = 10_000, 40


def suggestion(word: str, known: Iterable[str]) -> str:
    """What a misspelt word may have meant, or all that is known; begins with a space."""
    known = list(known)
    return closest(word, known) or f" Known: {', '.join(sorted(known))}."


def closest(word: str, known: Iterable[str]) -> str:
    """What a misspelt word may have meant, if anything; begins with a space where it does."""
    close = difflib.get_close_matches(word[: 2 * _MAX_LETTERS], list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def few(names: Iterable[str], near: str = "", most: int = 5) -> str:
    """Names for a line of an error, however many there are and however long.

    Args:
        names: All of them; those that are not shown are counted.
        near: Show the names nearest to this one first.
        most: How many are shown.
    """
    names = list(names)
    shown = names
    if len(names) > most:
        comparable = [n for n in names[:_MAX_COMPARED] if len(n) <= 2 * _MAX_LETTERS]
        close = difflib.get_close_matches(near, comparable, n=most) if near else []
        shown = close or names[:most]
    text = ", ".join(map(shortened, shown))
    return text if len(shown) == len(names) else f"{text} and {len(names) - len(shown):,} more"


def shortened(name: str) -> str:
    """A name of bounded length, in one line, and in quotes where it is empty."""
    if len(name) > _MAX_LETTERS:
        name = f"{name[: _MAX_LETTERS - 1]}…"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in name) or "''"
