"""The figures of the CCE text show the numbers of the results files."""

import json

import pytest

from benchmarks.cce.figures import (
    FOLDER,
    PAGE,
    Curve,
    Figure,
    all_figures,
    comparison_figures,
    drawn_from,
    schedule_figures,
    theorem_figures,
    variant_figures,
)

FIGURES = all_figures()


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_shows_the_measured_numbers(name):
    assert (FOLDER / f"{name}.svg").read_text().startswith(drawn_from(FIGURES[name]))


@pytest.mark.parametrize("name", FIGURES)
def test_the_page_shows_every_figure(name):
    assert f"images/{name}.svg" in PAGE.read_text()


def test_measured_means_are_below_what_is_proven():
    results = json.loads(
        (PAGE.parents[1] / "benchmarks/results/least-squares-cpu.json").read_text()
    )
    assert results["repetitions"] == 40
    for row in results["rows"]:
        assert all(e <= b * (1 + 1e-9) for e, b in zip(row["excess"], row["bounds"], strict=True))
    assert len(theorem_figures(results)) == 3


def test_a_schedule_is_drawn_at_its_last_clustering():
    rows = [
        {"count": 2, "interval": "1/3", "budget": 64, "seed": seed, "loss": loss, "auc": 0.7}
        for seed, loss in enumerate((0.4, 0.6))
    ]
    figure = schedule_figures("cce-schedules-x", rows)["cce-schedules-x-64-bce"]
    (curve,) = figure.curves
    assert curve.label == "ct 2"
    assert curve.points == [(pytest.approx(2 / 3), 0.5, 0.4, 0.6)]


def test_a_comparison_has_bce_and_auc_and_a_level_for_full_tables():
    base = {"status": "finished", "test_loss": "0.5", "test_auc": "0.7"}
    rows = [
        {**base, "method": "full", "params": "900", "test_auc": "0.9"},
        {**base, "method": "cce", "params": "100"},
        {**base, "method": "cce", "params": "300"},
        {**base, "method": "cce", "params": "200", "status": "does not fit"},
    ]
    figures = comparison_figures("x", rows)
    assert set(figures) == {"compare-x-bce", "compare-x-auc"}
    cce, full = figures["compare-x-auc"].curves
    assert [point[0] for point in cce.points] == [100.0, 300.0]
    assert full.proven
    assert full.points == [(100.0, 0.9, 0.9, 0.9), (300.0, 0.9, 0.9, 0.9)]


def test_variants_at_one_budget_are_side_by_side():
    rows = [{"variant": name, "budget": 64, "loss": 0.4, "auc": 0.5} for name in ("a", "b")]
    figure = variant_figures("x", rows)["x-auc"]
    assert [curve.points[0][0] for curve in figure.curves] == [1, 2]
    assert figure.log == ""


def test_variants_are_curves_over_budgets():
    rows = [
        {"variant": "a", "budget": budget, "loss": 0.4, "auc": auc}
        for budget, auc in ((64, 0.6), (32, 0.5))
    ]
    (curve,) = variant_figures("x", rows)["x-auc"].curves
    assert [point[:2] for point in curve.points] == [(32, 0.5), (64, 0.6)]


def test_a_figure_is_of_the_same_numbers_on_every_processor():
    def of(y):
        return drawn_from(Figure([Curve("a", [(0, y, y, y)])], "x", "y"))

    assert of(0.1 + 0.2) == of(0.3)
    assert of(0.30001) != of(0.3)
