"""What was sent between ranks, over the steps of a run."""

from __future__ import annotations

from outsize.contracts.messages import BYTE_KINDS
from outsize.reporting.colors import HIT_RATE, SENT
from outsize.reporting.page import figure_and_axes, svg_of
from outsize.reporting.plots import HEIGHT, WIDTH, draw_series, legend_below
from outsize.training.report.history import Line


def traffic_svg(lines: list[Line]) -> str:
    """Bytes per step sent between ranks, by kind, and the hit rate of the cache, over steps.

    Args:
        lines: Training lines that count what was sent.
    """
    steps = [line["step"] for line in lines]
    lengths = [max(now - before, 1) for before, now in zip([0, *steps], steps, strict=False)]
    figure, axes = figure_and_axes(WIDTH, HEIGHT)
    sent = [
        [line[f"sent_{kind}"] / n / 1e6 for line, n in zip(lines, lengths, strict=True)]
        for kind in BYTE_KINDS
    ]
    colors = [SENT[kind] for kind in BYTE_KINDS]
    if len(steps) > 1:
        axes.stackplot(steps, sent, labels=BYTE_KINDS, colors=colors, alpha=0.85, lw=0)
    else:
        below = 0.0
        for kind, values, color in zip(BYTE_KINDS, sent, colors, strict=True):
            axes.bar([f"step {steps[0]:,}"], values, bottom=below, color=color, label=kind)
            below += values[0]
    axes.set_xlabel("step")
    axes.set_ylabel("MB per step, all ranks")
    if len(steps) == 1 or not any(line["hit_rate"] for line in lines):
        legend_below(figure, axes, 4)
        return svg_of(figure)
    right = axes.twinx()
    points = [(line["step"], line["hit_rate"]) for line in lines]
    draw_series(right, points, color=HIT_RATE, label="hit rate (right axis)")
    right.set_ylim(0, 1)
    right.set_ylabel("hit rate", fontsize=9)
    right.tick_params(labelsize=8)
    legend_below(figure, axes, 4, right)
    return svg_of(figure)
