"""Refusals of impossible shapes, in the same words for every model."""

from __future__ import annotations

from collections.abc import Sequence

from outsize.errors import ConfigError


def require_widths(name: str, widths: Sequence[int]) -> None:
    """Refuse layers without a single unit."""
    if min(widths, default=1) < 1:
        raise ConfigError(f"{name} must hold widths >= 1, but got {tuple(widths)}")


def require_positive(name: str, value: int) -> None:
    """Refuse a count below 1."""
    if value < 1:
        raise ConfigError(f"{name} must be >= 1, but got {value}")


def require_one_of(name: str, value: str, words: Sequence[str]) -> None:
    """Refuse a word that is not among those known."""
    if value not in words:
        raise ConfigError(f"{name} must be one of {', '.join(words)}, but got {value!r}")
