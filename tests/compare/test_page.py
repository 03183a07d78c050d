import csv
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from html_pages import Page

from outsize.compare.crossing import Crossing
from outsize.compare.factors import Factor, factors_of, format_factor
from outsize.compare.grid import Cell
from outsize.compare.outcome import Outcome
from outsize.compare.plots import size_svg
from outsize.compare.results import Comparison, Point, Spread, best_at_each_budget
from outsize.compare.text_tables import best_lines, factors_table, kind_lines


@pytest.fixture
def out(done):
    return done[0]


def test_the_page_is_one_file_with_nothing_to_download(out):
    page = Page((out / "compare.html").read_text())
    assert not [link for link in page.links if not link.startswith("#")]
    assert page.opened.count("svg") == 4


def test_the_page_shows_curves_tables_run_and_environment(out):
    text = " ".join(Page((out / "compare.html").read_text()).words)
    for word in ("a <comparison>", "ce-concat", "Best at each budget", "Compression at the loss",
                 "quadratic", "batch_size = 100", "torch"):  # fmt: skip
        assert word in text


def test_the_csv_has_a_row_for_every_cell(out, grid):
    with (out / "compare.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["cell"] for row in rows] == [cell.name for cell in grid.cells(out)]
    for row in rows:
        assert row["status"] == "finished"
        assert float(row["test_loss"]) > 0
        assert int(row["total_bytes"]) == int(row["bytes_parameters"]) + int(row["bytes_index"])
    assert int(rows[0]["params"]) == 4 * (10 + 32 + 100)


def test_the_markdown_has_every_method_at_every_budget(out, grid):
    text = (out / "compare.md").read_text()
    for title in ("**BCE**", "**AUC**", "**Bytes of all tables", "**Compression at the loss"):
        assert text.count(title) == 1
    head = f"| method | {' | '.join(f'{budget:,}' for budget in grid.budgets)} |"
    assert text.count(head) == 3
    for method in grid.methods:
        (row, *_) = re.findall(rf"^\| {method} \|.*$", text, re.MULTILINE)
        assert row.count(" to ") == len(grid.budgets)


def point(budget, loss, *, spread=0.0, params=None):
    size = params or budget or 10_000
    auc = Spread(1 - loss, 1 - loss - spread, 1 - loss + spread)
    return Point(budget, 3, size, 4 * size, Spread(loss, loss - spread, loss + spread), auc)


def comparison(grid, curves, full=0.5, bayes=None):
    return Comparison(
        grid, {"a": 10, "b": 100, "c": 1_000_000}, [], point(None, full), curves, bayes or {}
    )


def test_the_best_is_named_with_its_ties(grid):
    found = comparison(
        grid,
        {
            "hash": [point(16, 0.60, spread=0.02), point(64, 0.5)],
            "ce-concat": [point(16, 0.58, spread=0.01), point(64, 0.4)],
        },
    )
    first, second = best_at_each_budget(found)
    assert (first.method, first.ties) == ("ce-concat", ("hash",))
    assert (second.method, second.ties) == ("ce-concat", ())
    assert best_lines(found, [first])[0] == (
        "at 16 parameters per table: ce-concat (BCE 0.58000), a tie with hash: their ranges overlap"
    )


def test_factors_follow_the_crossing(grid):
    # Dim is 4: a cap of 40 pays for 10 rows, and of 4,000 for 1,000.
    curve = [point(4, 0.7), point(40, 0.6), point(4_000, 0.4)]
    (found,) = factors_of(comparison(grid, {"hash": curve})).values()
    rows = 400 / 4
    linear = found.by_cap["linear"]
    assert linear.factor == pytest.approx(1_000_110 / (10 + rows + rows))
    assert linear.largest_table == pytest.approx(1_000_000 / rows)
    assert found.by_bytes["linear"].factor == pytest.approx(10_000 / 400)
    assert found.by_cap["quadratic"].crossing.kind == "interpolation"


def test_without_full_tables_there_are_no_factors(grid):
    found = Comparison(grid, {"a": 10}, [], None, {"hash": [point(16, 0.5)]}, {})
    assert factors_of(found) == {}
    assert ET.fromstring(size_svg(found, "loss", "params")) is not None


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (Factor(Crossing("interpolation", 1.0), 1639.52), "1,640× (interpolation)"),
        (Factor(Crossing("extrapolation", 1.0), 12.34), "12.3× (extrapolation)"),
        (Factor(Crossing("bound", 1.0), 2.0), "> 2.00× (bound)"),
        (Factor(Crossing("interpolation", 1.0), 9.0, None, (8.0, 12.0)),
         "9.00× (8.00× to 12.0×, interpolation)"),
        (Factor(Crossing("interpolation", 1.0), 9.0, None, (8.0, None, 12.0)),
         "9.00× (8.00× to 12.0×, none for 1 of 3 seeds, interpolation)"),
        (Factor(Crossing("extrapolation", 1.0), 1.0, None, (1.0, 1.0)),
         "not below full size (extrapolation)"),
        (Factor(Crossing("extrapolation", 1.0), 0.5, None, (0.4, 0.7)),
         "not below full size: 0.50× (0.40× to 0.70×, extrapolation)"),
        (Factor(Crossing("never")), "never"),
        (Factor(Crossing("unknown")), "unknown"),
    ],
)  # fmt: skip
def test_a_factor_says_how_it_was_found(factor, words):
    assert factor.describe() == words


def test_every_seed_has_its_own_factor(grid):
    # Losses of full tables, and at caps of 40 and 4,000; dim is 4, so seed 0 crosses at 400.
    losses = {0: (0.5, 0.6, 0.4), 1: (0.5, 0.6, 0.5), 2: (0.5, 0.6, 0.7)}
    outcomes = [
        Outcome(
            Cell(method, budget, seed, grid.run, Path(), grid.unit),
            "finished",
            result={"test": {"loss": loss}, "params": size, "total_bytes": 4 * size},
        )
        for seed, found in losses.items()
        for (method, budget, size), loss in zip(
            [("full", None, 10_000), ("hash", 40, 40), ("hash", 4_000, 4_000)], found, strict=True
        )
    ]
    vocabularies = {"a": 10, "b": 100, "c": 1_000_000}
    wide = replace(grid, methods=("hash",), budgets=(40, 4_000))
    found = factors_of(Comparison.of(wide, vocabularies, outcomes))["hash"].by_cap["linear"]
    first, second, third = found.by_seed
    assert first == pytest.approx(1_000_110 / 210)
    assert second == pytest.approx(1_000_110 / 1_110)
    assert third is None
    assert "none for 1 of 3 seeds" in found.describe()


def test_planted_clusters_are_named(grid):
    assert grid.run.data.num_clusters == 64
    lines = best_lines(comparison(grid, {"hash": [point(16, 0.4)]}), [])
    assert any("64 planted clusters" in line for line in lines)


def test_only_kinds_that_occur_are_explained(grid):
    factors = factors_of(comparison(grid, {"hash": [point(16, 0.4)]}))
    assert [line.partition(":")[0] for line in kind_lines(factors)] == ["bound"]
    assert factors_table(factors).rows[0][3].startswith("> ")


def test_plots_draw_each_method_full_tables_and_bayes(grid):
    curves = {"hash": [point(16, 0.6), point(64, 0.55)], "ce-concat": []}
    near = size_svg(comparison(grid, curves, bayes={"loss": 0.45}), "loss", "params")
    far = size_svg(comparison(grid, curves, bayes={"loss": 0.01}), "loss", "total_bytes")
    for word in ("hash", "full tables", "best reachable (Bayes) 0.4500"):
        assert f"{word}</span>" in near
    assert ">parameters of all tables</text>" in near
    assert "not shown" not in near
    assert "best reachable (Bayes) 0.0100, not shown" in far
    assert ">bytes of all tables, index maps included</text>" in far
    assert "ce-concat" not in far


def test_large_sizes_have_a_unit_that_is_read(grid):
    curves = {"hash": [point(20_000, 0.6), point(3_000_000, 0.5)]}
    drawn = size_svg(comparison(grid, curves), "loss", "params")
    assert ">million parameters of all tables</text>" in drawn
    assert ">0.1</text>" in drawn


def test_methods_of_one_size_are_drawn_side_by_side(grid):
    curves = {"hash": [point(16, 0.6), point(64, 0.6)], "cce": [point(16, 0.6), point(64, 0.6)]}
    drawn = ET.fromstring(size_svg(comparison(grid, curves), "loss", "params"))
    places = {circle.get("cx") for circle in drawn.iter("circle")}
    assert len(places) == 4


def test_one_budget_has_numbers_below_a_line_of_full_tables_and_methods_side_by_side(grid):
    curves = {"hash": [point(16, 0.6)], "cce": [point(16, 0.6)]}
    drawn = ET.fromstring(size_svg(comparison(grid, curves), "loss", "params"))
    assert len({circle.get("cx") for circle in drawn.iter("circle")}) == 2
    lines = [line.get("points").split() for line in drawn.iter("polyline")]
    assert all(len({point.split(",")[0] for point in line}) == 2 for line in lines)
    below = [t.text for t in drawn.iter("text") if float(t.get("y")) > 220]
    assert len([text for text in below if text.replace(".", "").isdigit()]) > 1


def test_factors_have_three_digits_or_more():
    assert [format_factor(f) for f in (0.5, 12.34, 123.4)] == ["0.50×", "12.3×", "123×"]
    assert format_factor(float("inf")) == "∞×"
