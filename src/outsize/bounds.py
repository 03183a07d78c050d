"""Bounds on the numbers of a configuration."""

from __future__ import annotations

import math

from outsize.errors import ConfigError


def require_at_least(config: object, least: float, *names: str) -> None:
    """Refuse fields that are set below `least`, infinite or NaN."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not least <= value < math.inf:
            raise ConfigError(f"{name} must be a finite number >= {least}, but got {value}")
