"""What was sent between ranks, over the steps of a run."""

from __future__ import annotations

from outsize.contracts.messages import BYTE_KINDS
from outsize.reporting.colors import HIT_RATE, SENT
from outsize.reporting.line_plot import Plot, Series, draw
from outsize.reporting.quantities import size_unit
from outsize.training.report.history import Line, RunHistory


def traffic_svg(history: RunHistory) -> str:
    """Bytes per step sent between ranks, by kind, and the hit rate of the cache, over steps.

    Args:
        history: The log, with lines that count what was sent.
    """
    lines = per_step_lines(history)
    steps = [line["step"] for line in lines]
    lengths = [max(now - before, 1) for before, now in zip([0, *steps], steps, strict=False)]
    sizes = {
        kind: [line[f"sent_{kind}"] / n for line, n in zip(lines, lengths, strict=True)]
        for kind in BYTE_KINDS
    }
    size, unit = size_unit(max(map(max, sizes.values())), ("bytes", "kB", "MB", "GB"))
    series = [
        Series(
            [(step, number / size) for step, number in zip(steps, numbers, strict=True)],
            SENT[kind],
            kind,
        )
        for kind, numbers in sizes.items()
    ]
    right = None
    if any(line["hit_rate"] for line in lines):
        most = max(value for each in series for _, value in each.points) or 1.0
        rates = [(line["step"], line["hit_rate"] * most) for line in lines]
        series.append(Series(rates, HIT_RATE, "hit rate (right axis)", dashed=True))
        right = (1 / most, "hit rate")
    return draw(
        Plot(
            series,
            "step",
            f"{unit} per step, all ranks",
            marks=history.epoch_ends,
            best=history.best_step,
            clock=history.clock,
            right=right,
            from_zero=True,
        )
    )


def counted_lines(history: RunHistory) -> list[Line]:
    """The lines that count what was sent between ranks: of training, and of what followed it."""
    return [line for line in history.lines if "sent_rows" in line]


def per_step_lines(history: RunHistory) -> list[Line]:
    """Those of them that are of steps; the last pushes of a run are in a line of their own."""
    counted = counted_lines(history)
    return [line for line in counted if line["split"] == "train"] or counted
