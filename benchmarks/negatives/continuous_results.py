"""The results of `benchmarks.negatives.continuous_search` as Markdown and as a plot."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.figures import HEIGHT, WIDTH, figure_and_axes, legend_below, svg_of
from outsize.files import write_text_atomically
from outsize.reporting.colors import series_color

Cell = dict[str, Any]
_SHOWN_SHARE = 0.1


def gap(cell: Cell, version: int = -1) -> float:
    """How far recall@10 is below that of all items encoded again, every query once."""
    return float(cell["full"][version] - cell["recall"][version])


def gap_as_asked(cell: Cell, version: int = -1) -> float:
    """The same, with queries weighted by how often they are asked."""
    return float(cell["full_as_asked"][version] - cell["recall_as_asked"][version])


def encoded(cell: Cell) -> float:
    """The share of items encoded per version, repairs of searches included.

    No query is asked after the last version, so it is left out.
    """
    return float(statistics.mean(cell["encoded"][:-1]))


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    cells = results["cells"]
    parts = [
        f"{results['num_items']:,} items. Gap: recall@10 with all items encoded again, minus "
        "recall@10 of the index, after 5 versions; mean ± standard deviation over seeds "
        f"{_listed(sorted({cell['seed'] for cell in cells}))}. *As asked* weights queries by how "
        "often users ask them, *once* counts each query once. *Overlap* is the share of the ten "
        "answers that are those of all items encoded again. *Encoded* is the share of items "
        "encoded per version, with what searches between versions repaired; a search that repairs "
        "encodes up to 20 candidates more for its own answer.\n"
    ]
    for setting in dict.fromkeys(cell["setting"] for cell in cells):
        own = [cell for cell in cells if cell["setting"] == setting]
        parts += [f"## {setting.capitalize()} model\n", _facts(own), _gaps(own), _versions(own)]
    return "\n".join(parts)


def _facts(cells: list[Cell]) -> str:
    drift = statistics.mean(value for cell in cells for value in cell["drift"])
    full = [cell["full"][-1] for cell in cells]
    asked = [cell["full_as_asked"][-1] for cell in cells]
    return (
        f"With all items encoded again, recall@10 is {statistics.mean(full):.3f} once and "
        f"{statistics.mean(asked):.3f} as asked. From version to version, vectors of items move by "
        f"{drift:.3f} (mean of ‖old − new‖², vectors of length 1).\n"
    )


def _gaps(cells: list[Cell]) -> str:
    lines = [
        "| policy | share | encoded | gap as asked | gap once | overlap as asked | overlap once |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for policy, share in dict.fromkeys((cell["policy"], cell["share"]) for cell in cells):
        own = [cell for cell in cells if (cell["policy"], cell["share"]) == (policy, share)]
        lines.append(
            f"| {policy} | {share:.0%} | {_mean(own, encoded):.1%} | {_spread(own, gap_as_asked)} "
            f"| {_spread(own, gap)} | {_mean(own, lambda c: c['overlap_as_asked'][-1]):.3f} "
            f"| {_mean(own, lambda c: c['overlap'][-1]):.3f} |"
        )
    return "\n".join(lines) + "\n"


def _versions(cells: list[Cell]) -> str:
    """The gap after each version, at one share."""
    own = [cell for cell in cells if cell["share"] == _SHOWN_SHARE]
    if not own:
        return ""
    versions = range(len(own[0]["full"]))
    lines = [
        f"Gap as asked after each version, at {_SHOWN_SHARE:.0%}:\n",
        "| policy | " + " | ".join(f"{version + 1}" for version in versions) + " |",
        "|---|" + "--:|" * len(versions),
    ]
    for policy in dict.fromkeys(cell["policy"] for cell in own):
        chosen = [cell for cell in own if cell["policy"] == policy]
        found = [
            statistics.mean(gap_as_asked(cell, version) for cell in chosen) for version in versions
        ]
        lines.append(f"| {policy} | " + " | ".join(f"{value:.4f}" for value in found) + " |")
    return "\n".join(lines) + "\n"


def write_plot(results: dict[str, Any], path: Path) -> None:
    """Draw the gap as asked by the share of items encoded, of the settled model, as SVG."""
    figure, axes = figure_and_axes(WIDTH, HEIGHT)
    cells = [cell for cell in results["cells"] if cell["setting"] == "settled"]
    for number, policy in enumerate(dict.fromkeys(cell["policy"] for cell in cells)):
        own = [cell for cell in cells if cell["policy"] == policy]
        groups = [
            [cell for cell in own if cell["share"] == share]
            for share in sorted({cell["share"] for cell in own})
        ]
        points = [(_mean(group, encoded), _mean(group, gap_as_asked)) for group in groups]
        xs, ys = zip(*sorted(points), strict=True)
        axes.plot(xs, ys, marker="o", color=series_color(number), label=policy)
    axes.axhline(0.01, color="gray", linewidth=1, linestyle="dotted")
    axes.set_xlabel("share of items encoded per version, repairs included")
    axes.set_ylabel("recall@10 below a full re-encode")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    legend_below(figure, axes, 3)
    write_text_atomically(path, svg_of(figure))


def _mean(cells: Iterable[Cell], value: Callable[[Cell], float]) -> float:
    return statistics.mean(value(cell) for cell in cells)


def _spread(cells: list[Cell], value: Callable[[Cell], float]) -> str:
    found = [value(cell) for cell in cells]
    spread = f" ± {statistics.stdev(found):.4f}" if len(found) > 1 else ""
    return f"{statistics.mean(found):.4f}{spread}"


def _listed(seeds: list[int]) -> str:
    return ", ".join(map(str, seeds))
