"""Embedding memory by table and kind."""

from __future__ import annotations

import html
from collections.abc import Mapping

from outsize.reporting.colors import MEMORY
from outsize.reporting.quantities import format_bytes
from outsize.spec import MEMORY_KINDS, MemoryUse

_MAX_TABLES = 15


def memory_svg(memory: Mapping[str, MemoryUse]) -> str:
    """Bytes by table and kind as bars: each cache, the largest tables, the other tables."""
    shown = _parts_to_show(memory)
    largest = max((use.total_bytes for use in shown.values()), default=0) or 1
    kinds = [kind for kind in MEMORY_KINDS if any(use.bytes_of(kind) for use in shown.values())]
    rows = []
    for name, use in shown.items():
        bars = "".join(
            f'<i title="{kind}: {format_bytes(use.bytes_of(kind))}" style="background:'
            f'{MEMORY[kind]};width:{100 * use.bytes_of(kind) / largest:.2f}%"></i>'
            for kind in kinds
        )
        rows.append(
            f"<tr><th>{html.escape(name)}</th><td><div>{bars}</div></td>"
            f"<td>{format_bytes(use.total_bytes)}</td></tr>"
        )
    legend = "".join(
        f'<span><i class="dot" style="background:{MEMORY[kind]}"></i>{kind}</span>'
        for kind in kinds
    )
    return (
        f'<div class="plot"><table class="bars">{"".join(rows)}</table>'
        f'<div class="legend">{legend}</div></div>'
    )


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
