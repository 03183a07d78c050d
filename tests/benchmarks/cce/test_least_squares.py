"""Theorem B.0 of "Clustering the Sketch" holds where we can measure it."""

import pytest
import torch

from benchmarks.cce.least_squares import (
    BENCHMARK,
    Problem,
    bound,
    corollary,
    dense_cce,
    proven_bounds,
)
from outsize.bench import measure


def inputs(d1=30, d2=2, n=100, scale=None):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, d1, dtype=torch.float64, generator=generator)
    if scale is not None:
        x = x * scale
    return x, torch.randn(n, d2, dtype=torch.float64, generator=generator)


def mean_excess(problem, noise="normal", half=False, iterations=6):
    found = [
        dense_cce(problem, 6, iterations, torch.Generator().manual_seed(seed), noise, half)
        for seed in range(20)
    ]
    return torch.stack(found).mean(dim=0)


def test_the_mean_excess_stays_below_the_bound_in_every_variant(tmp_path):
    results = measure(BENCHMARK, tmp_path, quick=True, quiet=True)
    assert len(results["rows"]) == 10
    for row in results["rows"]:
        for excess, limit in zip(row["excess"], row["bounds"], strict=True):
            assert 0 < excess <= limit * (1 + 1e-9)
        assert row["excess"] == sorted(row["excess"], reverse=True)
        assert all(low <= mean <= high for low, mean, high in
                   zip(row["least"], row["excess"], row["most"], strict=True))  # fmt: skip
    (page,) = tmp_path.glob("*.md")
    assert "is at or below the bound" in page.read_text()
    results["rows"][0]["excess"][3] = results["rows"][0]["bounds"][3] * 1.01
    assert "is NOT at or below the bound" in BENCHMARK.table(results)


@pytest.mark.parametrize("noise", ["normal", "aligned"])
@pytest.mark.parametrize("half", [False, True])
def test_the_excess_is_that_of_the_algorithm_as_it_is_written(noise, half):
    # Noise of the reduced problem is in the coordinates of V, so X is made with V = 1.
    scale = torch.logspace(0, -1, 12, dtype=torch.float64)
    x, y = inputs(d1=12, n=40)
    x = torch.linalg.qr(x).Q * scale
    found = dense_cce(Problem(scale, (x / scale).T @ y), 5, 4, _seeded(), noise, half)
    generator, current = _seeded(), torch.zeros(12, 2, dtype=torch.float64)
    least = (x @ torch.linalg.lstsq(x, y).solution - y).square().sum()
    for i in range(4):
        drawn = torch.randn(12, 3, dtype=torch.float64, generator=generator)
        if noise == "aligned":
            drawn = drawn / scale.unsqueeze(1)
        if half:
            current = current + drawn @ torch.linalg.lstsq(x @ drawn, y - x @ current).solution
        else:
            basis = torch.cat([current, drawn], dim=1)
            # The first T is zero, so X H is rank-deficient: the driver must allow for it.
            current = basis @ torch.linalg.lstsq(x @ basis, y, driver="gelsd").solution
        excess = (x @ current - y).square().sum() - least
        assert found[i + 1].item() == pytest.approx(excess.item(), rel=1e-8)


def _seeded():
    return torch.Generator().manual_seed(5)


def test_the_restricted_form_of_the_proof_is_no_better():
    problem = Problem.of(*inputs())
    full, half = (mean_excess(problem, half=half) for half in (False, True))
    assert (full[2:] < half[2:]).all()


def test_aligned_noise_converges_faster_where_singular_values_differ():
    problem = Problem.of(*inputs(scale=torch.logspace(0, -2, 30, dtype=torch.float64)))
    normal, aligned = (mean_excess(problem, noise, iterations=8) for noise in ("normal", "aligned"))
    assert aligned[-1] < normal[-1]


def test_equal_singular_values_give_the_corollary():
    x, y = inputs()
    problem = Problem.of(torch.linalg.qr(x).Q, y)
    limits = bound(problem, 6, 5)
    assert torch.allclose(limits, bound(problem, 6, 5, "aligned"))
    assert limits.tolist() == pytest.approx(
        [(1 - 1 / 30) ** (4 * i) * problem.fitted.item() for i in range(6)]
    )
    shares = corollary({"k": 6, "d1": 30, "d2": 2}, 5)
    assert all(limit <= share * problem.fitted for limit, share in zip(limits, shares, strict=True))
    row = {"x": "equal", "half": False, "noise": "normal", "excess": [1.0] * 6}
    results = {"shape": {"k": 6, "d1": 30, "d2": 2}, "rows": [row | {"bounds": limits.tolist()}]}
    assert proven_bounds(results, "equal") == {"bound of Corollary B.1": shares}
