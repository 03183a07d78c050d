import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outsize.compare.crossing import (
    Crossing,
    compression,
    linear_crossing,
    quadratic_crossing,
)


def test_the_example_of_clustering_the_sketch():
    vocabularies, rows = [10, 100, 10**6], 8000 / 16
    assert compression(vocabularies, rows) == pytest.approx(1_000_110 / 610)
    assert round(compression(vocabularies, rows), 1) == 1639.5
    assert compression([max(vocabularies)], rows) == 2000


def test_a_cap_beyond_every_table_compresses_nothing():
    assert compression([10, 20], 1e9) == 1
    assert compression([20], math.inf) == 1


def test_a_line_is_halfway_in_the_logarithm():
    found = linear_crossing([100, 400], [0.6, 0.4], 0.5)
    assert (found.kind, found.size) == ("interpolation", pytest.approx(200))


def test_a_point_on_the_baseline_is_the_crossing():
    found = linear_crossing([100, 400, 1600], [0.6, 0.5, 0.4], 0.5)
    assert (found.kind, found.size) == ("interpolation", pytest.approx(400))


def test_beyond_the_budgets_the_last_two_points_lead_on():
    found = linear_crossing([10, 100, 1000], [0.9, 0.7, 0.6], 0.5)
    assert (found.kind, found.size) == ("extrapolation", pytest.approx(10_000))


def test_a_parabola_is_found_again():
    # loss = (log10(size) - 4)² / 10 comes down to 0.1 at size 1,000.
    sizes = [10, 100, 10_000]
    losses = [(math.log10(size) - 4) ** 2 / 10 for size in sizes]
    found = quadratic_crossing(sizes, losses, 0.1)
    assert (found.kind, found.size) == ("interpolation", pytest.approx(1000))
    found = quadratic_crossing([1, 10, 100], [1.6, 0.9, 0.4], 0.1)
    assert (found.kind, found.size) == ("extrapolation", pytest.approx(1000))


def test_the_parabola_takes_the_nearest_third_point():
    # Through 1, 10 and 100 it is a line; the far point would bend it.
    sizes, losses = [1, 10, 100, 10**9], [0.9, 0.7, 0.5, 0.49]
    assert quadratic_crossing(sizes, losses, 0.6).size == pytest.approx(10**1.5)


def test_a_parabola_that_turns_before_the_baseline_never_meets_it():
    assert quadratic_crossing([1, 10, 100], [0.9, 0.6, 0.5], 0.4) == Crossing("never")
    assert linear_crossing([1, 10, 100], [0.9, 0.6, 0.5], 0.4).size == pytest.approx(1000)


def test_a_convex_curve_meets_the_baseline_later_by_parabola():
    sizes, losses = [10, 100, 1000], [0.9, 0.7, 0.6]
    linear = linear_crossing(sizes, losses, 0.59)
    quadratic = quadratic_crossing(sizes, losses, 0.59)
    assert linear.size < quadratic.size
    assert linear.kind == quadratic.kind == "extrapolation"


@pytest.mark.parametrize("crossing", [linear_crossing, quadratic_crossing])
class TestBoth:
    def test_the_smallest_budget_may_already_be_there(self, crossing):
        assert crossing([8, 16, 32], [0.4, 0.3, 0.2], 0.5) == Crossing("bound", 8)

    def test_a_curve_that_moves_away_never_meets(self, crossing):
        assert crossing([8, 16, 32], [0.7, 0.6, 0.65], 0.5) == Crossing("never")
        assert crossing([8, 16, 32], [0.6, 0.6, 0.6], 0.5) == Crossing("never")

    def test_overfitting_later_does_not_move_the_first_crossing(self, crossing):
        found = crossing([8, 16, 32, 64], [0.6, 0.4, 0.7, 0.3], 0.5)
        assert found.kind == "interpolation"
        assert 8 < found.size < 16

    def test_one_budget_is_too_few(self, crossing):
        assert crossing([8], [0.6], 0.5) == Crossing("unknown")

    def test_no_budget_is_too_few(self, crossing):
        assert crossing([], [], 0.5) == Crossing("unknown")

    def test_a_curve_almost_flat_meets_at_infinity(self, crossing):
        found = crossing([8, 16, 32], [0.9, 0.8, 0.8 - 1e-15], 0.5)
        assert found.size in (None, math.inf)


def test_two_budgets_are_too_few_for_a_parabola():
    assert quadratic_crossing([8, 16], [0.6, 0.4], 0.5) == Crossing("unknown")


@st.composite
def falling_curves(draw):
    """Ascending sizes, descending losses, and a baseline between two of them."""
    sizes = sorted(draw(st.sets(st.integers(1, 10**9), min_size=3, max_size=8)))
    steps = draw(st.lists(st.floats(1e-4, 1), min_size=len(sizes), max_size=len(sizes)))
    losses = [sum(steps[i:]) for i in range(len(steps))]
    place = draw(st.integers(1, len(sizes) - 1))
    share = draw(st.floats(0, 0.99))
    baseline = losses[place] + share * (losses[place - 1] - losses[place])
    return sizes, losses, baseline, place


@given(falling_curves())
def test_a_falling_curve_is_met_between_the_budgets_that_bracket_it(curve):
    sizes, losses, baseline, place = curve
    for found in (
        linear_crossing(sizes, losses, baseline),
        quadratic_crossing(sizes, losses, baseline),
    ):
        assert found.kind == "interpolation"
        assert sizes[place - 1] * (1 - 1e-9) <= found.size <= sizes[place] * (1 + 1e-9)


@given(st.lists(st.integers(1, 10**7), min_size=1), st.floats(1, 1e8))
def test_compression_is_at_least_none_and_at_most_that_of_the_largest(vocabularies, rows):
    factor = compression(vocabularies, rows)
    assert 1 <= factor <= compression([max(vocabularies)], rows) * (1 + 1e-9)
