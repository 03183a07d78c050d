"""What a stale or partial cache does to the gradient of a softmax stays within what is proved."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.negatives.linear_towers import make_towers, stale_softmax
from benchmarks.negatives.partial_softmax import Corpus, bias_row, bias_rows, cache_gap
from benchmarks.negatives.refresh_sweeps import sweep_group, sweep_row
from benchmarks.negatives.stale_softmax import linearity_row, opposite_items, shares_of_bounds
from benchmarks.slopes import slope_of_logs
from outsize.negatives import NegativeCache


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    beta=st.floats(0.01, 100),
    num_items=st.integers(2, 100),
    dim=st.integers(1, 16),
    scale=st.floats(1e-4, 10),
)
def test_no_bound_is_ever_exceeded(seed, beta, num_items, dim, scale):
    towers = make_towers(num_items, 4, 5, dim, generator(seed))
    noise = torch.randn(num_items, dim, dtype=torch.float64, generator=generator(seed + 1))
    shares = shares_of_bounds(towers, towers.items() + scale * noise, beta)
    assert max(shares.values()) <= 1 + 1e-9
    assert shares["of_bound"] <= 0.25 + 1e-9, "a quarter of the text's bound is all there is"


def test_opposite_items_reach_a_quarter_of_the_bound():
    shares = shares_of_bounds(*opposite_items(1e-3), beta=1.0)
    assert shares["of_bound"] == pytest.approx(0.25, rel=2e-3)
    assert shares["tanh"] == pytest.approx(1, rel=2e-3)
    far = shares_of_bounds(*opposite_items(3.0), beta=10.0)
    assert far["of_most"] == pytest.approx(1, rel=2e-3)


def test_the_bias_is_that_of_automatic_differentiation():
    towers = make_towers(7, 3, 5, 4, generator())
    cached = towers.items() + 0.3 * torch.randn(7, 4, dtype=torch.float64, generator=generator(1))
    found = stale_softmax(towers, cached, 3.0)
    weights = [towers.item_weight.clone(), towers.query_weight.clone()]
    live = replace(
        towers, item_weight=weights[0].requires_grad_(), query_weight=weights[1].requires_grad_()
    )
    scores = live.queries() @ live.items().T
    for i, own in enumerate(towers.positives):
        stale = towers.queries()[i] @ cached.T
        stale[own] = scores[i, own].detach()
        change = torch.softmax(3 * stale, 0) - torch.softmax(3 * scores[i].detach(), 0)
        parts = torch.autograd.grad(3 * (change * scores[i]).sum(), weights, retain_graph=True)
        assert found.bias[i].item() == pytest.approx(torch.cat(parts).norm().item())
        each = [torch.autograd.grad(s, weights, retain_graph=True) for s in scores[i]]
        steepest = max(torch.cat(parts).norm().item() for parts in each)
        assert found.steepest[i].item() == pytest.approx(steepest)
        moved = (stale - scores[i]).abs().max().item()
        assert found.change_of_scores[i].item() == pytest.approx(moved)


@pytest.mark.parametrize("beta", [1.0, 20.0])
def test_the_bias_is_linear_in_staleness_while_that_is_small(beta):
    row = linearity_row(beta, num_items=100)
    assert row["num_small"] >= 5
    assert row["slope"] == pytest.approx(1, abs=0.01)
    assert row["points"][-1]["of_most"] > 0.1, "and then it levels off"


def test_the_bias_of_a_swept_cache_is_linear_in_what_is_not_swept():
    group = sweep_group(2.0, 1e-3, 32, [1.0, 1 / 2, 1 / 4, 1 / 16], sizes=(64, 32), steps=16)
    assert [row["k"] for row in group["rows"]] == [0, 1, 3, 15]
    assert group["slope"] == pytest.approx(1, abs=0.2)
    fresh = group["rows"][0]
    assert fresh["largest"] < 1e-6 * fresh["most"], "but for rounding"
    for row in group["rows"][1:]:
        assert row["largest"] <= row["by_scores"] <= row["bound"]


def test_a_sweep_that_forgets_the_oldest_is_found_out(monkeypatch):
    towers = make_towers(64, 32, 16, 16, generator(1))
    monkeypatch.setattr(NegativeCache, "oldest", lambda cache, num: cache.held(torch.arange(num)))
    row = sweep_row(towers, 1 / 4, 2.0, 1e-3, 32, steps=16)
    assert row["k"] > 3


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_bias_of_a_sample_falls_as_one_over_its_size():
    group = bias_rows(0.5, num_items=256, sizes=(8, 32, 128), num_samples=3000)
    assert group["slope"] == pytest.approx(1, abs=0.1)
    for row in group["rows"]:
        assert row["bias"] < row["plain"] / 10, "the 1/α is worth having"
    steep = bias_rows(10.0, num_items=256, sizes=(8, 32, 128), num_samples=1000)
    assert steep["rows"][0]["bias"] * 8 > 10 * group["rows"][0]["bias"] * 8, "exp(O(β))"


def test_a_sample_of_everything_has_no_bias():
    row = bias_row(Corpus(64, 5.0), 64, 10)
    assert row["bias"] < 1e-12
    assert row["plain"] < 1e-12


def test_the_mean_over_samples_is_what_it_would_be_without_the_trick():
    corpus, num = Corpus(32, 2.0), 20_000
    drawn = torch.rand(num, 32, generator=generator(5)).topk(4, dim=1).indices
    held = torch.zeros(num, 32, dtype=torch.float64).scatter_(1, drawn, 8.0)
    upper, lower = corpus.sums(held)
    whole_upper, whole_lower = corpus.sums(torch.ones(1, 32, dtype=torch.float64))
    plain = (upper / lower - whole_upper / whole_lower).mean(dim=0).norm().item()
    assert bias_row(corpus, 4, num)["bias"] == pytest.approx(plain, rel=0.15)


def test_a_real_cache_counts_each_item_for_many(monkeypatch):
    corpus = Corpus(64, 5.0)
    assert cache_gap(corpus, 16, 4) < 1e-5
    build = NegativeCache.__init__

    def forget(self, *arguments, corpus_size, **options):
        build(self, *arguments, **options)

    monkeypatch.setattr(NegativeCache, "__init__", forget)
    assert cache_gap(corpus, 16, 4) > 1e-2


def test_the_slope_of_logarithms_is_the_exponent():
    assert slope_of_logs([1, 2, 5], [3, 12, 75]) == pytest.approx(2)
