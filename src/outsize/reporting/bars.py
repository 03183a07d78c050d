"""Sizes by part and kind as horizontal bars, with the legend below them."""

from __future__ import annotations

import html
from collections.abc import Mapping

from outsize.reporting.quantities import format_bytes


def bars(parts: Mapping[str, Mapping[str, float]], colors: Mapping[str, str]) -> str:
    """Bytes by part and kind, as HTML: one bar for each part.

    Args:
        parts: Part → kind → bytes.
        colors: The colour of each kind, in the order of drawing; kinds without bytes are left out.
    """
    totals = {name: sum(sizes.values()) for name, sizes in parts.items()}
    largest = max(totals.values(), default=0) or 1
    kinds = [kind for kind in colors if any(sizes.get(kind) for sizes in parts.values())]
    rows = []
    for name, sizes in parts.items():
        pieces = "".join(
            f'<i title="{kind}: {format_bytes(sizes.get(kind, 0))}" style="background:'
            f'{colors[kind]};width:{100 * sizes.get(kind, 0) / largest:.2f}%"></i>'
            for kind in kinds
        )
        rows.append(
            f"<tr><th>{html.escape(name)}</th><td><div>{pieces}</div></td>"
            f"<td>{format_bytes(totals[name])}</td></tr>"
        )
    legend = "".join(
        f'<span><i class="dot" style="background:{colors[kind]}"></i>{kind}</span>'
        for kind in kinds
    )
    return (
        f'<div class="plot"><table class="bars">{"".join(rows)}</table>'
        f'<div class="legend">{legend}</div></div>'
    )
