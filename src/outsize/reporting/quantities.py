"""Sizes and counts, formatted for people."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_TIMES = ((3.0 * 3600, 3600.0, "hours"), (3.0 * 60, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def format_bytes(size: float) -> str:
    """A formatted size: 23.4 MB."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {_UNITS[-1]}"


def size_unit(largest: float, names: Sequence[str]) -> tuple[float, str]:
    """The unit to show sizes in, a power of 1,000: its size, and its name of those given."""
    power = max((n for n in range(len(names)) if largest >= 1000**n), default=0)
    return 1000.0**power, names[power]


def format_seconds(seconds: float) -> str:
    """A formatted duration: 0.034 s, 3.2 s, 4 min 10 s, 2 h 5 min."""
    if 0 < seconds < 0.1:
        return f"{seconds:.2g} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def time_unit(longest_s: float) -> tuple[float, str]:
    """The unit to show times in: its seconds, and its name."""
    return next((size, name) for least, size, name in _TIMES if longest_s >= least)
