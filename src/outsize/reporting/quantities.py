"""Sizes and counts as people read them."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB")


def format_bytes(size: float) -> str:
    """A formatted size: 23.4 MB."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {_UNITS[-1]}"


def format_count(count: float) -> str:
    """A formatted count: 23.4 k, 1.5 M."""
    for unit in ("", " k", " M"):
        if count < 1000:
            return f"{count:.1f}{unit}"
        count /= 1000
    return f"{count:.1f} G"
