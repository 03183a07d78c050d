"""Theorem B.0 of "Clustering the Sketch" holds where we can measure it."""

import pytest
import torch

from benchmarks.cce.least_squares import BENCHMARK, bound, dense_cce
from outsize.bench import measure


def problem(d1=30, d2=2, n=100, scale=None):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, d1, dtype=torch.float64, generator=generator)
    if scale is not None:
        x = x * scale
    return x, torch.randn(n, d2, dtype=torch.float64, generator=generator)


def test_the_mean_loss_stays_below_the_bound_in_every_variant(tmp_path):
    results = measure(BENCHMARK, tmp_path, quick=True, quiet=True)
    assert len(results["rows"]) == 8
    for row in results["rows"]:
        for loss, limit in zip(row["losses"], row["bounds"], strict=True):
            assert row["least"] <= loss <= limit * (1 + 1e-9)
        assert row["losses"][-1] < 0.9 * row["losses"][0]
        assert row["losses"] == sorted(row["losses"], reverse=True)


def test_the_restricted_form_of_the_proof_is_no_better():
    x, y = problem()
    full, half = (
        torch.stack(
            [
                dense_cce(x, y, 6, 6, torch.Generator().manual_seed(s), "normal", h)
                for s in range(20)
            ]
        ).mean(dim=0)
        for h in (False, True)
    )
    assert (full[2:] < half[2:]).all()


def test_aligned_noise_converges_faster_where_singular_values_differ():
    scale = torch.logspace(0, -2, 30, dtype=torch.float64)
    x, y = problem(scale=scale)
    normal, aligned = (
        torch.stack(
            [dense_cce(x, y, 6, 8, torch.Generator().manual_seed(s), noise) for s in range(20)]
        ).mean(dim=0)
        for noise in ("normal", "aligned")
    )
    assert aligned[-1] < normal[-1]


def test_equal_singular_values_give_the_corollary():
    x, y = problem()
    x = torch.linalg.qr(x).Q
    limits = bound(x, y, 6, 5)
    residual = (x @ (x.T @ y) - y).square().sum()
    fitted = (x @ (x.T @ y)).square().sum()
    expected = [(1 - 1 / 30) ** (4 * i) * fitted + residual for i in range(6)]
    assert limits.tolist() == pytest.approx([e.item() for e in expected])
    assert torch.allclose(limits, bound(x, y, 6, 5, "aligned"))
