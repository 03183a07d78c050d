"""Colours of plots; on a page, each means one thing."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SPLITS: Mapping[str, str] = MappingProxyType(
    {"train": "#8a94a3", "validation": "#2563eb", "test": "#ea580c"}
)
BAYES = "#16a34a"
MARK = "#1f2933"
"""The best step, and other lines that stand for no series."""
FAINT = "#d5dce5"
"""Ends of epochs."""

MEMORY: Mapping[str, str] = MappingProxyType(
    {"parameters": "#7c3aed", "index": "#c4b5fd", "optimizer": "#db2777", "cache": "#0d9488"}
)
SENT: Mapping[str, str] = MappingProxyType(
    {"ids": "#a16207", "clocks": "#eab308", "rows": "#0891b2", "gradients": "#4d7c0f"}
)
HIT_RATE = "#111827"

SERIES = ("#2563eb", "#ea580c", "#0d9488", "#db2777", "#7c3aed", "#a16207", "#0891b2", "#4d7c0f",
          "#dc2626", "#64748b", "#9d174d", "#1e3a8a")  # fmt: skip
"""Colours of runs or methods, on pages where they are all that is coloured."""


def series_color(number: int) -> str:
    """The colour of the run or method of this number."""
    return SERIES[number % len(SERIES)]
