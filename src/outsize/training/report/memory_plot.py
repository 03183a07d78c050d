"""Embedding memory by table and kind."""

from __future__ import annotations

from collections.abc import Mapping

from outsize.reporting.colors import MEMORY
from outsize.reporting.page import figure_and_axes, svg_of
from outsize.reporting.plots import WIDTH, legend_below
from outsize.spec import MEMORY_KINDS, MemoryUse

_MAX_TABLES = 15
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))


def memory_svg(memory: Mapping[str, MemoryUse]) -> str:
    """Bytes by table and kind: each cache, the largest tables, and the other tables together."""
    shown = _parts_to_show(memory)
    figure, axes = figure_and_axes(WIDTH, 0.9 + 0.22 * max(4, len(shown)))
    names = list(shown)[::-1]
    left = [0.0] * len(names)
    largest = max((use.total_bytes for use in shown.values()), default=0)
    size, unit = next((u for u in _UNITS if largest >= u[0]), _UNITS[-1])
    for kind in MEMORY_KINDS:
        widths = [shown[name].bytes_of(kind) / size for name in names]
        if any(widths):
            axes.barh(names, widths, left=left, color=MEMORY[kind], label=kind)
            left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlabel(unit)
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="y", visible=False)
    legend_below(figure, axes, 4)
    return svg_of(figure)


def _parts_to_show(memory: Mapping[str, MemoryUse]) -> dict[str, MemoryUse]:
    is_cache = {name: use.bytes_of("cache") > 0 for name, use in memory.items()}
    by_size = sorted(memory.items(), key=lambda item: -item[1].total_bytes)
    tables = [(name, use) for name, use in by_size if not is_cache[name]]
    shown = {name: use for name, use in by_size if is_cache[name]}
    shown |= dict(tables[:_MAX_TABLES])
    if len(tables) > _MAX_TABLES:
        others = [use for _, use in tables[_MAX_TABLES:]]
        shown[f"{len(others)} others"] = sum(others, MemoryUse())
    return shown
