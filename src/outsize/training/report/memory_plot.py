"""Embedding memory by table and kind."""

from __future__ import annotations

from collections.abc import Mapping

from outsize.reporting.colors import MEMORY
from outsize.reporting.page import figure_and_axes, svg_of
from outsize.reporting.plots import CHARACTER, WIDTH, legend_below, set_margins
from outsize.spec import MEMORY_KINDS, MemoryUse

_MAX_TABLES = 15
_MAX_NAME = 24
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))


def memory_svg(memory: Mapping[str, MemoryUse]) -> str:
    """Bytes by table and kind: each cache, the largest tables, and the other tables together."""
    shown = _parts_to_show(memory)
    figure, axes = figure_and_axes(WIDTH, 0.9 + 0.22 * max(4, len(shown)), measures_text=False)
    names = [n if len(n) <= _MAX_NAME else f"{n[: _MAX_NAME - 1]}…" for n in shown][::-1]
    places, left = range(len(names)), [0.0] * len(names)
    largest = max((use.total_bytes for use in shown.values()), default=0)
    size, unit = next((u for u in _UNITS if largest >= u[0]), _UNITS[-1])
    for kind in MEMORY_KINDS:
        widths = [use.bytes_of(kind) / size for use in reversed(shown.values())]
        if any(widths):
            axes.barh(places, widths, left=left, color=MEMORY[kind], label=kind)
            left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(places, names)
    axes.set_xlabel(unit)
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="y", visible=False)
    num_rows = legend_below(figure, axes, 4)
    set_margins(figure, num_rows, left=0.2 + CHARACTER * max(map(len, names), default=0))
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
