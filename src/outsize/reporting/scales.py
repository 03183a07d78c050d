"""Axes of plots: from values to pixels, and the round numbers to write beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """About `count` round numbers from `low` to `high`."""
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    size = 10.0 ** math.floor(math.log10(span / count))
    step = next(f * size for f in (1, 2, 2.5, 5, 10) if span / (f * size) <= count + 0.5)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) if step > 1e-9 else i * step for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from `low` to `high`, with 2 and 5 between them where there is room.

    Round numbers of a linear axis if these are fewer than two.
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors: tuple[int, ...] = (1,) if high > 1000 * low else (1, 2, 5)
    found = [f * 10.0**d for d in decades for f in factors]
    shown = [value for value in found if low <= value * (1 + 1e-9) and value <= high * (1 + 1e-9)]
    return shown if len(shown) > 1 else ticks(low, high, 4)


class Scale:
    """Maps values to places between two pixels.

    Args:
        low: The lowest value.
        high: The highest.
        low_px: The place of the lowest value.
        high_px: That of the highest.
        log: Whether equal factors are equally far apart.
    """

    def __init__(
        self, low: float, high: float, low_px: float, high_px: float, log: bool = False
    ) -> None:
        self.low, self.high, self.low_px, self.high_px, self.log = low, high, low_px, high_px, log

    def __call__(self, value: float) -> float:
        """The place of a value."""
        value, low, high = ((math.log(v) if self.log else v) for v in (value, self.low, self.high))
        share = (value - low) / (high - low)
        return round(self.low_px + share * (self.high_px - self.low_px), 1)

    def ticks(self, count: int = 6) -> list[float]:
        """Round values to write on an axis."""
        return log_ticks(self.low, self.high) if self.log else ticks(self.low, self.high, count)


def padded(values: Sequence[float], log: bool, from_zero: bool = False) -> tuple[float, float]:
    """The range of values with some room at both ends."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if log:
        room = max((high / low) ** 0.05, 1.05)
        return low / room, high * room
    room = (high - low) * 0.05 or abs(high) * 0.05 or 0.5
    return (0.0 if from_zero and low >= 0 else low - room), high + room
