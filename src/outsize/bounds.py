"""Range checks for the fields of a configuration."""

from __future__ import annotations

import math

from outsize.errors import ConfigError

MAX_INTEGER = (1 << 63) - 1
MAX_RATE = 1e6
"""Upper bound of learning rates and similar: far above any useful value, far below overflow."""


def require_at_least(config: object, least: float, *names: str) -> None:
    """Raise a `ConfigError` for fields below `least`, infinite, NaN or beyond 64 bits."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not least <= value < math.inf:
            raise ConfigError(f"{name} must be a finite number >= {least}, but got {value}")
        if isinstance(value, int) and value > MAX_INTEGER:
            raise ConfigError(f"{name} must be a 64-bit integer, but got {value}")


def require_between(config: object, least: float, most: float, *names: str) -> None:
    """Raise a `ConfigError` for fields below `least`, above `most`, or NaN."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not least <= value <= most:
            raise ConfigError(f"{name} must be between {least:,} and {most:,}, but got {value}")


def require_staleness(config: object, *names: str) -> None:
    """Raise a `ConfigError` for fields that are neither whole numbers >= 0 nor infinity."""
    for name in names:
        value = getattr(config, name)
        if not value >= 0 or (math.isfinite(value) and value != int(value)):
            raise ConfigError(f"{name} must be a whole number >= 0 or infinity, but got {value}")


def require_text(config: object, *names: str) -> None:
    """Raise a `ConfigError` for strings, or lists of strings, that are or contain an empty one."""
    for name in names:
        value = getattr(config, name)
        for text in (value,) if isinstance(value, str) else value:
            if not text.strip():
                raise ConfigError(f"{name} must not be empty, but got {value!r}")
