"""Lemma B.4 of "Clustering the Sketch", where it has a closed form and where it is an equality."""

import pytest
import torch

from benchmarks.cce.ratio_lemma import BENCHMARK, SHARES, expectation, shares_of
from outsize.bench import measure

RESULTS = measure(BENCHMARK, quick=True, quiet=True)


@pytest.mark.parametrize("row", RESULTS["figure"], ids=lambda row: f"{row['kind']}-{row['p']}")
def test_what_is_measured_agrees_with_the_closed_form(row):
    assert row["mean"] == pytest.approx(row["exact"], abs=6 * row["standard_error"] + 0.01)
    assert (row["exact"] > 1 - 1e-9) == (row["p"] <= 0.5)


@pytest.mark.parametrize("n", [2, 3, 100])
def test_shares_are_those_of_the_lemma(n):
    for shares in shares_of(n).values():
        assert len(shares) == n
        assert sum(shares) == pytest.approx(1)
        assert min(shares) >= 0
        assert shares[-1] <= 1 / n


def test_equal_shares_give_one_and_a_smaller_last_share_gives_more():
    generator = torch.Generator().manual_seed(0)
    equal = expectation("chi-square", [0.25] * 4, 100_000, generator)
    smaller = expectation("chi-square", [0.3, 0.3, 0.3, 0.1], 100_000, generator)
    assert equal.item() == pytest.approx(1, abs=0.02)
    assert smaller.item() > 1.1


def test_the_page_has_both_parts():
    page = BENCHMARK.table(RESULTS)
    assert page.count("\n| 0.") == len(SHARES)
    assert page.count("\n| 100 | ") == 4
