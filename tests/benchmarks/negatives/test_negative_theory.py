"""What the text of the negative cache proves holds where we can measure it."""

import pytest
import torch

from benchmarks.negatives import theory
from benchmarks.negatives.biased_descent import (
    Quadratics,
    constant_pull,
    descend,
    random_quadratics,
    random_row,
)
from benchmarks.negatives.cached_descent import Way, train_in_turns
from benchmarks.negatives.descent_results import as_good, mean_rows, run_row, slopes
from benchmarks.negatives.estimator_spread import make_setting, spread_row
from benchmarks.negatives.small_towers import TwoTowers, expected_gradient, make_pairs
from outsize.bench import measure
from outsize.bench.runner import results_stem
from outsize.negatives import ESTIMATORS, ExactLoss, NegativeCacheLoss, Temperature, estimators


@pytest.mark.usefixtures("unchecked_shapes")
def test_every_statement_holds(tmp_path):
    results = measure(theory.BENCHMARK, tmp_path, quick=True, quiet=True)
    stem = results_stem("negative-theory", results["environment"])
    text = (tmp_path / f"{stem}.md").read_text()
    assert all(name in text for name in ("Theorem 2", "Lemma 4", "Lemma 6", "Theorems 3 and 5"))
    assert all(row["largest_z"] < 5 for row in results["spread"])
    for row in results["bounds"]:
        assert max(row[name] for name in ("of_chances", "tanh", "of_most")) <= 1 + 1e-9
        assert max(row["of_bound"], row["chances"]) <= 0.25 + 1e-9
    assert all(abs(line["slope"] - 1) < 0.01 for line in results["linear"])
    for group in results["sweeps"]:
        assert all(row["largest"] <= row["bound"] for row in group["rows"] if row["k"])
        assert group["slope"] == pytest.approx(1, abs=0.2)
    assert results["by_rate"]["slope"] == pytest.approx(1, abs=0.05)
    assert results["samples"][0]["slope"] == pytest.approx(1, abs=0.2)
    for row in results["descents"]:
        assert row["share_of_double"] <= 1
    for row in results["training"]["rows"]:
        assert row["loss"] < row["first_loss"]
        assert (row["bias"] > 0) == (row["way"] not in ("exact", "ρ = 1"))


@pytest.mark.usefixtures("unchecked_shapes")  # half of the time; other tests here check them
@pytest.mark.parametrize("staleness", [0.0, 0.1])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_an_estimate_has_the_expectation_it_is_said_to_have(estimator, staleness):
    turns = 300 if estimator in ("weighted", "sampled", "control-variate") else 150
    row = spread_row(make_setting(staleness), estimator, 4, turns)
    assert row["largest_z"] < 5
    assert row["beyond_2"] < 0.15
    assert row["coordinates"] == 8 * 8 + 8 * 8 + 1


@pytest.mark.usefixtures("unchecked_shapes")
def test_estimators_spread_as_they_should():
    names = ("weighted", "sampled", "control-variate")
    spread = {name: spread_row(make_setting(0.01), name, 1, turns=300) for name in names}
    weighted = spread["weighted"]
    assert spread["control-variate"]["of_queries"] < 0.1 * weighted["of_queries"]
    assert spread["control-variate"]["of_items"] == pytest.approx(weighted["of_items"], rel=0.3)
    assert weighted["of_items"] < 0.95 * spread["sampled"]["of_items"]
    many = spread_row(make_setting(0.01), "weighted", 8, turns=300)
    assert many["of_items"] == pytest.approx(weighted["of_items"] / 8, rel=0.3)


def test_an_estimator_that_forgets_the_positive_is_found_out(monkeypatch):
    monkeypatch.setattr(estimators.torch, "logaddexp", lambda fresh, cached: cached + 0 * fresh)
    row = spread_row(make_setting(0.0), "weighted", 4, turns=200)
    assert row["largest_z"] > 5


def test_the_text_forgets_a_factor_2():
    example = constant_pull()
    assert example["left"] == pytest.approx(0.907, abs=5e-4)
    assert example["right"] == pytest.approx(0.567, abs=5e-4)
    assert example["right"] < example["left"] < 2 * example["right"]


@pytest.mark.parametrize("steps", [1, 8, 200])
def test_with_its_factor_2_the_lemma_holds(steps):
    assert random_row(2000, steps, seed=steps)["share_of_double"] <= 1


def test_expectations_of_a_descent_are_those_of_many_descents():
    problem = random_quadratics(1, seed=3)
    noisy = Quadratics(
        problem.curvatures, problem.start, problem.bias, 0.5 * torch.ones_like(problem.bias),
        0.5 / problem.curvatures.amax(dim=1),
    )  # fmt: skip
    expected, _ = descend(noisy, 6)
    generator = torch.Generator().manual_seed(0)
    theta = noisy.start.repeat(20_000, 1)
    left = torch.zeros(len(theta), dtype=torch.float64)
    for _ in range(6):
        gradient = noisy.curvatures * theta
        left += gradient.square().sum(dim=1) / 6
        noise = torch.randn(theta.shape, dtype=theta.dtype, generator=generator)
        theta = theta - noisy.learning_rate * (gradient + noisy.bias + noisy.noise * noise)
    assert left.mean().item() == pytest.approx(expected.item(), rel=0.02)


@pytest.fixture(scope="module")
def pairs():
    return make_pairs(96, 40, 8, seed=0)


def test_the_exact_gradient_is_that_of_the_exact_loss(pairs):
    towers = TwoTowers(pairs, 0)
    found = expected_gradient(towers, 10.0)
    loss = ExactLoss(towers.source(), Temperature(10.0))
    queries = towers.encode_queries(torch.arange(40))
    report = loss(queries, {"id": pairs.positives}, pairs.positives)
    parts = torch.autograd.grad(report.loss, list(towers.parameters()))
    torch.testing.assert_close(found.gradient, torch.cat([part.flatten() for part in parts]))
    assert found.loss == pytest.approx(report.loss.item(), rel=1e-5)


def test_the_expected_gradient_of_a_cache_is_the_mean_over_draws(pairs):
    towers = TwoTowers(pairs, 0)
    loss = Way(0.0, num_held=48, num_draws=8).build(towers, seed=1)
    assert isinstance(loss, NegativeCacheLoss)
    loss.begin()
    with torch.no_grad():
        towers.weights["items_second"].add_(0.1 * torch.randn_like(towers.weights["items_second"]))
    expected = expected_gradient(towers, 20.0, loss.cache).gradient
    exact = expected_gradient(towers, 20.0).gradient
    found = []
    for _ in range(200):
        queries = towers.encode_queries(torch.arange(40))
        report = loss(queries, {"id": pairs.positives}, pairs.positives)
        parts = torch.autograd.grad(report.loss, list(towers.parameters()))
        found.append(torch.cat([part.flatten() for part in parts]))
    estimates = torch.stack(found).double()
    error = (estimates.var(dim=0).sum() / len(found)).sqrt()
    assert (estimates.mean(dim=0) - expected).norm() < 1.5 * error
    assert (expected - exact).norm() > 5 * error, "and it is not the exact one"


def test_a_cache_refreshed_every_step_has_no_bias_and_trains_as_exact_does(pairs):
    ways = [Way(None), Way(1.0, num_draws=32), Way(1e-4, num_draws=32)]
    runs = train_in_turns(ways, pairs, 16, rate=0.2, seed=0)
    rows = [run_row(run, 0) for run in runs]
    assert rows[0]["first_loss"] == rows[1]["first_loss"] == rows[2]["first_loss"]
    assert rows[0]["bias"] == 0
    assert rows[1]["bias"] < 1e-9 < 1e-3 < rows[2]["bias"]
    assert rows[1]["loss"] == pytest.approx(rows[0]["loss"], rel=0.05)
    assert rows[1]["age"] == 0 < rows[2]["age"]


def test_runs_are_the_same_each_time(pairs):
    ways = [Way(0.1), Way(0.1, 48)]
    first, second = (train_in_turns(ways, pairs, 4, rate=0.2, seed=0) for _ in range(2))
    assert [run.probes for run in first] == [run.probes for run in second]


def test_results_are_means_over_seeds():
    def row(way, steps, seed, loss):
        sizes = {"gradient": 8 / steps, "bias": 4 / steps**2, "share": 1.0, "age": 0.0}
        kept = {"first_loss": 9.0, "loss": loss, "step_s": 0.1}
        return {"way": way, "T": steps, "seed": seed, **sizes, **kept}

    rows = [row("ρ = 1", 4, 0, 1.0), row("ρ = 1", 4, 1, 3.0), row("ρ = 0.1", 4, 0, 3.0)]
    assert [found["loss"] for found in mean_rows(rows)] == [2.0, 3.0]
    assert as_good(rows, 4, "ρ = 1") == {"ρ = 1": 1.0, "ρ = 0.1": 1.5}
    found = slopes([*rows, row("ρ = 1", 16, 0, 1.0)])
    (of_fresh,) = found.values()
    assert of_fresh["gradient"] == pytest.approx(-1)
    assert of_fresh["bias"] == of_fresh["last_bias"] == pytest.approx(-2)
