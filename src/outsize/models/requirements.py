"""Refusals of impossible shapes, in the same words for every model."""

from __future__ import annotations

from collections.abc import Sequence

from outsize.bounds import MAX_INTEGER
from outsize.errors import ConfigError

_MAX_LAYERS = 1024


def require_widths(name: str, widths: Sequence[int]) -> None:
    """Refuse layers without a single unit, and more layers than any model has."""
    if len(widths) > _MAX_LAYERS:
        raise ConfigError(f"{name} must hold {_MAX_LAYERS:,} widths at most, but got {len(widths)}")
    if not 1 <= min(widths, default=1) <= max(widths, default=1) <= MAX_INTEGER:
        raise ConfigError(f"{name} must hold widths >= 1, but got {tuple(widths)}")


def require_layers(name: str, count: int) -> None:
    """Refuse a number of layers that is none, or more than any model has."""
    if not 1 <= count <= _MAX_LAYERS:
        raise ConfigError(f"{name} must be between 1 and {_MAX_LAYERS:,}, but got {count}")


def require_positive(name: str, value: int) -> None:
    """Refuse a count below 1."""
    if value < 1:
        raise ConfigError(f"{name} must be >= 1, but got {value}")


def require_one_of(name: str, value: str, words: Sequence[str]) -> None:
    """Refuse a word that is not among those known."""
    if value not in words:
        raise ConfigError(f"{name} must be one of {', '.join(words)}, but got {value!r}")
