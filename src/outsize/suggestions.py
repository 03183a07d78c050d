"""Names in error messages: suggestions for misspelt ones, and shortened lists."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MAX_COMPARED, _MAX_LETTERS = 10_000, 40


def suggestion(word: str, known: Iterable[str]) -> str:
    """The known name nearest to a misspelt one, or all known names; begins with a space."""
    known = list(known)
    return closest(word, known) or f" Known: {', '.join(sorted(known))}."


def closest(word: str, known: Iterable[str]) -> str:
    """What a misspelt word may have meant, if anything; begins with a space where it does."""
    close = difflib.get_close_matches(word[: 2 * _MAX_LETTERS], list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def few(names: Iterable[str], near: str = "", most: int = 5) -> str:
    """A list of names that fits one line of an error message.

    Args:
        names: All names; those not shown are counted.
        near: Show the names nearest to this one first.
        most: The maximum number of names shown.
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
    """A name cut to a bounded length, on one line, in quotes if it is empty."""
    if len(name) > _MAX_LETTERS:
        name = f"{name[: _MAX_LETTERS - 1]}…"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in name) or "''"
