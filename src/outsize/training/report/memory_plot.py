"""Embedding memory by table and kind."""

from __future__ import annotations

from collections.abc import Mapping

from outsize.reporting.bars import bars
from outsize.reporting.colors import MEMORY
from outsize.spec import MEMORY_KINDS, MemoryUse

_MAX_TABLES = 15


def memory_svg(memory: Mapping[str, MemoryUse]) -> str:
    """Bytes by table and kind as bars: each cache, the largest tables, the other tables."""
    shown = _parts_to_show(memory)
    sizes: dict[str, dict[str, float]] = {
        name: {kind: use.bytes_of(kind) for kind in MEMORY_KINDS} for name, use in shown.items()
    }
    return bars(sizes, MEMORY)


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
