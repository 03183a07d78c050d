"""The figures of docs/cce-figures.md, drawn from results files.

    python -m benchmarks.cce.figures

Each figure is one of "Clustering the Sketch" with what was measured here. A grid whose results are
not there has no figure.
"""

from __future__ import annotations

import csv
import hashlib
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cce.least_squares import proven_bounds
from benchmarks.figures import figure_and_axes, legend_below, svg_of
from outsize.files import write_text_atomically
from outsize.reporting.colors import MARK, series_color

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "images"
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "cce-figures.md"
COMPARISONS = ("ml1m", "sba-loans", "synthetic")
METRICS = {"loss": "test BCE", "auc": "test AUC"}
_MARKERS = "osD^vP<>Xhd*"
_LEGEND_COLUMNS = 4

Point = tuple[float, float, float, float]
"""x, y, and the range of y."""


@dataclass(frozen=True)
class Curve:
    """A line of a figure.

    Attributes:
        label: Its name in the legend.
        points: Where it goes.
        proven: Whether it is a bound or a reference, which is drawn dashed and without markers.
    """

    label: str
    points: Sequence[Point]
    proven: bool = False


@dataclass(frozen=True)
class Figure:
    """What a figure shows.

    Attributes:
        curves: Its lines.
        x_label: The name of the x axis.
        y_label: The name of the y axis.
        log: The axes that are logarithmic: "", "x" or "y".
    """

    curves: Sequence[Curve]
    x_label: str
    y_label: str
    log: str = ""


def main() -> None:
    """Draw all figures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, figure in all_figures().items():
        text = f"{drawn_from(figure)}\n{_svg(figure)}"
        write_text_atomically(FOLDER / f"{name}.svg", text)
        print(f"{name}.svg")


def all_figures() -> dict[str, Figure]:
    """Every figure, by the name of its file."""
    figures: dict[str, Figure] = {}
    for path in sorted(RESULTS.glob("*.json")):
        name = path.stem.removesuffix("-cpu")
        if name == "least-squares":
            figures |= theorem_figures(json.loads(path.read_text()))
        elif name == "ratio-lemma":
            figures["cce-ratio-lemma"] = lemma_figure(json.loads(path.read_text()))
        elif name.startswith("cce-schedules-"):
            figures |= schedule_figures(name, json.loads(path.read_text())["rows"])
        elif name.startswith(("cce-appendix-a-", "dhe-depth-", "cce-kmeans-iterations-")):
            figures |= variant_figures(name, json.loads(path.read_text())["rows"])
        elif name.startswith("cce-drift-"):
            rows = json.loads(path.read_text())["rows"]
            figures |= variant_figures(name, rows, {"all: loss": "loss", "all: auc": "auc"})
    for name in COMPARISONS:
        with (RESULTS / f"compare-{name}-gpu.csv").open(newline="") as file:
            figures |= comparison_figures(name, list(csv.DictReader(file)))
    return figures


def theorem_figures(results: Mapping[str, Any]) -> dict[str, Figure]:
    """Figures 2 and 6, and Corollary B.1: the excess by iteration beside what is proven."""
    figures = {}
    for kind in dict.fromkeys(row["x"] for row in results["rows"]):
        curves = []
        for row in results["rows"]:
            if row["x"] != kind:
                continue
            start = row["excess"][0]
            numbers = zip(row["excess"], row["least"], row["most"], strict=True)
            points = [(i, *(number / start for number in three)) for i, three in enumerate(numbers)]
            label = f"{row['noise']} noise{', half' if row['half'] else ''}"
            curves.append(Curve(label, points))
        for label, values in proven_bounds(results, kind).items():
            points = [(i, value, value, value) for i, value in enumerate(values)]
            curves.append(Curve(label, points, proven=True))
        name = f"cce-least-squares-{kind.replace(' ', '-')}"
        figures[name] = Figure(curves, "iteration", "excess loss, as a share of the start", "y")
    return figures


def lemma_figure(results: Mapping[str, Any]) -> Figure:
    """Figure 7: the expectation of the lemma for two variables."""
    curves = []
    for kind in dict.fromkeys(row["kind"] for row in results["figure"]):
        rows = [row for row in results["figure"] if row["kind"] == kind]
        curves.append(Curve(kind, [_with_error(row) for row in rows]))
        exact = [(row["p"], *(row["exact"],) * 3) for row in rows]
        curves.append(Curve(f"{kind}, closed form", exact, proven=True))
    return Figure(curves, "p", "E [x / (p x + (1 − p) y)]")


def schedule_figures(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Figures 8 and 10: a metric over when the last clustering is, a curve per number of them."""
    figures = {}
    for budget in dict.fromkeys(row["budget"] for row in rows):
        for metric, label in METRICS.items():
            curves = []
            for count in sorted({row["count"] for row in rows}):
                found: dict[float, list[float]] = {}
                for row in rows:
                    if (row["count"], row["budget"]) == (count, budget):
                        last = float(count * Fraction(row["interval"]))
                        found.setdefault(last, []).append(row[metric])
                points = [_spread(x, values) for x, values in sorted(found.items())]
                curves.append(Curve(f"ct {count}", points))
            figures[f"{name}-{budget}-{_short(metric)}"] = Figure(
                curves, "epochs before the last clustering", label
            )
    return figures


def variant_figures(
    name: str, rows: Sequence[Mapping[str, Any]], keys: Mapping[str, str] | None = None
) -> dict[str, Figure]:
    """A metric of every variant, as a curve over budgets, or side by side at a single one."""
    figures = {}
    single = len({row["budget"] for row in rows}) == 1
    for key, metric in (keys or {name: name for name in METRICS}).items():
        curves = []
        for number, variant in enumerate(dict.fromkeys(row["variant"] for row in rows), start=1):
            found: dict[float, list[float]] = {}
            for row in rows:
                if row["variant"] == variant:
                    found.setdefault(number if single else row["budget"], []).append(row[key])
            curves.append(Curve(variant, [_spread(x, v) for x, v in sorted(found.items())]))
        figures[f"{name}-{_short(metric)}"] = Figure(
            curves,
            "variant, in the order of the legend" if single else "parameters per table",
            METRICS[metric],
            "" if single else "x",
        )
    return figures


def comparison_figures(name: str, rows: Sequence[Mapping[str, str]]) -> dict[str, Figure]:
    """Figures 4 and 9: BCE and AUC of every table method over parameters."""
    finished = [row for row in rows if row["status"] == "finished"]
    figures = {}
    for metric, label in METRICS.items():
        curves = []
        for method in dict.fromkeys(row["method"] for row in finished):
            found: dict[float, list[float]] = {}
            for row in finished:
                if row["method"] == method:
                    found.setdefault(float(row["params"]), []).append(float(row[f"test_{metric}"]))
            points = [_spread(x, values) for x, values in sorted(found.items())]
            curves.append(Curve(method, points))
        figures[f"compare-{name}-{_short(metric)}"] = Figure(
            _full_as_level(curves), "parameters of all tables", label, "x"
        )
    return figures


def drawn_from(figure: Figure) -> str:
    """A comment that says which numbers a figure shows, by their digest.

    Numbers count with six digits: the last ones of `exp` differ between processors.
    """
    shown = json.loads(json.dumps(asdict(figure)), parse_float=lambda text: f"{float(text):.5e}")
    digest = hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()
    return f"<!-- drawn from {digest[:16]} -->"


def _full_as_level(curves: Iterable[Curve]) -> list[Curve]:
    """Full tables as a level line as long as the others' curves."""
    others = [curve for curve in curves if curve.label != "full"]
    sizes = [point[0] for curve in others for point in curve.points]
    levels = [
        Curve("full tables", [(x, *curve.points[0][1:]) for x in (min(sizes), max(sizes))], True)
        for curve in curves
        if curve.label == "full"
    ]
    return [*others, *levels]


def _spread(x: float, values: Sequence[float]) -> Point:
    return (x, statistics.mean(values), min(values), max(values))


def _with_error(row: Mapping[str, Any]) -> Point:
    mean, error = row["mean"], row["standard_error"]
    return (row["p"], mean, mean - error, mean + error)


def _short(metric: str) -> str:
    return "bce" if metric == "loss" else metric


def _svg(figure: Figure) -> str:
    drawn, axes = figure_and_axes(4.8, 3.4)
    measured = [curve for curve in figure.curves if not curve.proven]
    for number, curve in enumerate(measured):
        _draw(axes, curve, number)
    for number, curve in enumerate(c for c in figure.curves if c.proven):
        style = ("--", ":")[number % 2]
        xs, ys = [point[0] for point in curve.points], [point[1] for point in curve.points]
        axes.plot(xs, ys, style, color=MARK, lw=1.1, label=curve.label)
    if "x" in figure.log:
        axes.set_xscale("log")
    if "y" in figure.log:
        axes.set_yscale("log")
        lowest = min(point[1] for curve in measured for point in curve.points)
        axes.set_ylim(bottom=lowest / 2)
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label)
    legend_below(drawn, axes, _LEGEND_COLUMNS)
    return svg_of(drawn)


def _draw(axes: Axes, curve: Curve, number: int) -> None:
    xs, ys, lows, highs = (list(values) for values in zip(*curve.points, strict=True))
    color, label = series_color(number), curve.label
    if len(xs) > 20:
        axes.plot(xs, ys, color=color, lw=1.4, label=label)
        axes.fill_between(xs, lows, highs, color=color, alpha=0.15, lw=0)
        return
    below = [y - low for y, low in zip(ys, lows, strict=True)]
    above = [high - y for y, high in zip(ys, highs, strict=True)]
    marker = _MARKERS[number % len(_MARKERS)]
    axes.errorbar(xs, ys, yerr=[below, above], color=color, marker=marker, ms=4, lw=1.4,
                  elinewidth=0.9, capsize=2.5, label=label)  # fmt: skip


if __name__ == "__main__":
    main()
