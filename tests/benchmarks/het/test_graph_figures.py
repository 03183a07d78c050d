"""The figures of the page on graphs show the numbers of the results file."""

import json

import pytest

from benchmarks.het.graph_figures import FOLDER, RESULTS, ROOT, drawn_from, points_of

FIGURES = points_of(json.loads(RESULTS.read_text())["rows"])


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_shows_the_measured_numbers(name):
    assert (FOLDER / f"{name}.svg").read_text().startswith(drawn_from(FIGURES[name]))


@pytest.mark.parametrize("name", FIGURES)
def test_the_page_shows_every_figure(name):
    assert f"images/{name}.svg" in (ROOT / "docs" / "graphs.md").read_text()


def test_curves_are_those_of_the_first_seed_on_two_ranks():
    point = {"step": 5, "bytes": 3e9, "seconds": 2.0, "accuracy": 0.5}
    row = {"graph": "g", "mode": "s = 10", "num_ranks": 2, "seed": 0, "curve": [point]}
    others = [{**row, "seed": 1}, {**row, "num_ranks": 4}]
    figures = points_of([row, *others])
    assert figures["graph-g-bytes"] == [{"label": "s = 10", "points": [(3.0, 0.5)]}]
    assert figures["graph-g-seconds"] == [{"label": "s = 10", "points": [(2.0, 0.5)]}]
