"""The figures of docs/graphs.md, drawn from the results of `graph_staleness`.

python -m benchmarks.het.graph_figures
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import figure_and_axes, svg_of
from outsize.files import write_text_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "images"
RESULTS = ROOT / "benchmarks" / "results" / "graph-staleness-cpu.json"
_COLORS = {
    "synchronous": "#1f2933",
    "s = 0": "#8c564b",
    "s = 10": "#1f77b4",
    "s = 100": "#ff7f0e",
    "s = inf": "#d62728",
    "lru": "#9467bd",
    "lfu": "#bcbd22",
    "fading-lfu": "#2ca02c",
}
_DASHES = {"s = 100": "--", "s = inf": ":", "lfu": "--"}


def main() -> None:
    """Draw all figures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = json.loads(RESULTS.read_text())["rows"]
    for name, drawn in points_of(rows).items():
        write_text_atomically(FOLDER / f"{name}.svg", f"{drawn_from(drawn)}\n{_svg(name, drawn)}")


def points_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What each figure draws: its curves, by the figure's name."""
    figures = {}
    for graph in dict.fromkeys(row["graph"] for row in rows if "graph" in row):
        same = [row for row in rows if row.get("graph") == graph]
        curves = [
            {"label": row["mode"], "points": row["curve"]}
            for row in same
            if (row["seed"], row["num_ranks"]) == (0, 2)
        ]
        for axis in ("bytes", "seconds"):
            figures[f"graph-{graph}-{axis}"] = [_curve(curve, axis) for curve in curves]
    sizes = [row for row in rows if "policy" in row]
    figures["graph-hit-rate"] = [
        {
            "label": policy,
            "points": [(row["share"], row["hit_rate"]) for row in sizes if row["policy"] == policy],
        }
        for policy in dict.fromkeys(row["policy"] for row in sizes)
    ]
    return figures


def drawn_from(curves: Sequence[Mapping[str, Any]]) -> str:
    """A comment that says which numbers a figure shows, by their digest."""
    digest = hashlib.sha256(json.dumps(curves, sort_keys=True).encode()).hexdigest()
    return f"<!-- drawn from {digest[:16]} -->"


def _curve(curve: Mapping[str, Any], axis: str) -> dict[str, Any]:
    scale = 1e-9 if axis == "bytes" else 1.0
    points = [(point[axis] * scale, point["accuracy"]) for point in curve["points"]]
    return {"label": curve["label"], "points": points}


def _svg(name: str, curves: Sequence[Mapping[str, Any]]) -> str:
    figure, axes = figure_and_axes(4.6, 3.4)
    for curve in curves:
        _draw(axes, curve)
    if name == "graph-hit-rate":
        axes.set_xlabel("share of the rows that a cache holds")
        axes.set_ylabel("hit rate")
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    else:
        unit = "GB sent by all ranks" if name.endswith("bytes") else "seconds of training"
        axes.set_xlabel(unit)
        axes.set_ylabel("validation accuracy")
        axes.set_xlim(left=0)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return svg_of(figure)


def _draw(axes: Axes, curve: Mapping[str, Any]) -> None:
    xs, ys = zip(*curve["points"], strict=True)
    label = curve["label"]
    style = _DASHES.get(label, "-")
    axes.plot(xs, ys, style, color=_COLORS[label], marker="o", ms=3, lw=1.4, label=label)


if __name__ == "__main__":
    main()
