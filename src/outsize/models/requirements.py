"""Checks of model shapes, shared by all models."""

from __future__ import annotations

from collections.abc import Sequence

from outsize.bounds import MAX_INTEGER
from outsize.errors import ConfigError
from outsize.suggestions import closest

_MAX_LAYERS = 1024


def require_widths(name: str, widths: Sequence[int]) -> None:
    """Raise a `ConfigError` for widths that are not whole numbers >= 1, or too many layers."""
    if not all(type(width) is int for width in widths):
        raise ConfigError(f"{name} must hold whole numbers, but got {widths!r:.80}")
    if len(widths) > _MAX_LAYERS:
        raise ConfigError(f"{name} must hold {_MAX_LAYERS:,} widths at most, but got {len(widths)}")
    if not 1 <= min(widths, default=1) <= max(widths, default=1) <= MAX_INTEGER:
        raise ConfigError(f"{name} must hold widths >= 1, but got {tuple(widths)}")


def require_layers(name: str, count: int) -> None:
    """Raise a `ConfigError` for less than one layer, or too many layers."""
    if type(count) is not int or not 1 <= count <= _MAX_LAYERS:
        raise ConfigError(f"{name} must be between 1 and {_MAX_LAYERS:,}, but got {count!r}")


def require_positive(name: str, value: int) -> None:
    """Raise a `ConfigError` for a value below 1."""
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name} must be >= 1, but got {value!r}")


def require_one_of(name: str, value: str, words: Sequence[str]) -> None:
    """Raise a `ConfigError` for a value that is not one of the allowed ones."""
    if value not in words:
        raise ConfigError(
            f"{name} must be one of {', '.join(words)}, but got {value!r}.{closest(value, words)}"
        )
