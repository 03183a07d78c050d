"""What HET proves about bounded staleness holds where we can measure it."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.het.push_intervals import push_intervals
from benchmarks.het.stale_training import Training, make_problem, train
from benchmarks.het.staleness_theory import BENCHMARK, distance_row, slopes
from outsize.bench import measure
from outsize.bench.runner import results_stem
from outsize.stores.copies import RowCopies


@pytest.fixture(scope="module")
def problem():
    return make_problem(num_rows=16, num_examples=128)


def training(staleness, rounds=17):
    return Training(rounds, 0.05, staleness, probes=range(0, rounds, 3))


@pytest.fixture(scope="module")
def stale(problem):
    """A run at s = 3."""
    return train(problem, training(3))


@pytest.mark.usefixtures("unchecked_shapes")  # a third of the time; other tests here check them
def test_every_bound_holds(tmp_path):
    results = measure(BENCHMARK, tmp_path, quick=True, quiet=True)
    stem = results_stem("staleness-theory", results["environment"])
    assert (tmp_path / f"{stem}.md").exists()
    for row in results["intervals"]:
        assert abs(row["mean"] - row["expected"]) <= 3 * row["error"]
        assert row["deviation"] == pytest.approx(row["expected_deviation"], rel=0.3)
        assert row["ticks"] == [row["s"] + 1]
    for row in results["distances"]:
        assert row["max"] <= row["bound_by_counts"] <= row["bound"]
        assert row["missed"] == row["reachable"] <= row["promised"]
        assert row["missed_of_one"] <= 2 * row["s"]
        assert row["steepest_by_l_squared"] <= 1
    assert max(row["steepest_by_l"] for row in results["distances"]) > 1, "L is not enough"
    assert [row["max"] > 0 for row in results["distances"]] == [False, True]
    for row in results["gradients"]:
        assert row["left"] <= row["bound_before"] <= row["bound"]
        assert (row["staleness_before"] > 0) == (row["s"] > 0)
    assert all(slope["all"] < -0.4 for slope in results["slopes"].values())


def test_without_staleness_training_equals_that_without_a_cache(problem, stale):
    plain, cached = (train(problem, training(staleness)) for staleness in (None, 0))
    assert torch.equal(plain.gradients, cached.gradients)
    assert torch.equal(plain.reference, cached.reference)
    assert torch.equal(plain.reads, cached.reads)
    assert not cached.missed.any()
    assert not torch.equal(plain.reference, stale.reference)


def test_probes_do_not_disturb_training(problem, stale):
    alone = train(problem, replace(training(3), probes=()))
    assert torch.equal(stale.reference, alone.reference)


def test_nothing_counts_twice_and_a_worker_misses_none_of_its_own_updates(stale):
    assert (stale.missed >= 0).all()
    for rank in range(4):
        assert not stale.missed[:, rank, :, rank].any()


def test_a_cache_that_misses_more_than_its_bound_is_found_out(problem, stale):
    assert distance_row(problem, training(3), stale)["missed"] == 9
    lower = distance_row(problem, training(2), stale)
    assert lower["missed"] > lower["promised"]


@pytest.mark.parametrize("defect", ["late pushes", "late reads"])
def test_a_defect_of_the_cache_is_found_out(problem, monkeypatch, defect):
    due, held_clocks = RowCopies.due, RowCopies.held_clocks
    if defect == "late pushes":
        monkeypatch.setattr(RowCopies, "due", lambda self, bound: due(self, bound + 1))
    else:

        def from_the_future(self, slots):
            clocks = held_clocks(self, slots)
            return torch.where(clocks >= 0, clocks + 7, clocks)

        monkeypatch.setattr(RowCopies, "held_clocks", from_the_future)
    row = distance_row(problem, training(3), train(problem, training(3)))
    assert row["missed"] > row["reachable"]


def test_a_row_in_every_batch_is_pushed_every_s_plus_1_rounds(monkeypatch):
    (row,) = push_intervals(2, [1.0], rows_each=4, num_pushes=3)
    assert (row["mean"], row["deviation"], row["count"]) == (3.0, 0.0, 12)
    due = RowCopies.due
    monkeypatch.setattr(RowCopies, "due", lambda self, bound: due(self, bound + 1))
    (row,) = push_intervals(2, [1.0], rows_each=4, num_pushes=3)
    assert (row["mean"], row["ticks"]) == (4.0, [4])


def test_the_problem_is_what_it_says(problem):
    rows = torch.randn(16, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows.requires_grad_()
    residual = problem.features @ rows - problem.targets
    value = residual.square().sum(dim=1).mean() / 2
    value.backward()
    assert torch.allclose(problem.gradient(rows.detach()), rows.grad)
    assert problem.loss(rows.detach()) == pytest.approx(value.item())
    best = torch.linalg.solve(problem.hessian, problem.linear)
    assert problem.loss(best) == pytest.approx(problem.least)
    assert problem.smoothness == pytest.approx(4)
    assert ((problem.features != 0).sum(dim=1) == 4).all()


def test_a_slope_is_that_of_the_logarithms():
    rows = [{"s": 7, "T": t, "left": 3 / math.sqrt(t)} for t in (4, 16, 256)]
    assert slopes(rows) == {"7": {"all": pytest.approx(-0.5), "last": pytest.approx(-0.5)}}
    rows[0]["left"] *= 2
    assert slopes(rows)["7"]["all"] < -0.6
    assert slopes(rows)["7"]["last"] == pytest.approx(-0.5)
