import pytest
import torch

from outsize.metrics import ClickMetrics
from outsize.metrics.calibration import CalibrationBins


def bins_of(logits, labels):
    bins = CalibrationBins()
    bins.add(logits, torch.sigmoid(logits), labels)
    return bins


def draw(count, seed, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, generator=generator, dtype=torch.float64) * 1.5 - 3
    clicks = torch.rand(count, generator=generator, dtype=torch.float64)
    return logits, (clicks < torch.sigmoid(logits + shift)).double()


def test_groups_have_the_rates_of_their_examples():
    logits = torch.tensor([-4.0, -4.0, 0.0, 0.0, 3.0, 3.0], dtype=torch.float64)
    labels = torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    found = bins_of(logits, labels).groups(num_groups=3)
    assert found.count == [2, 2, 2]
    assert found.observed == [0.0, 0.5, 1.0]
    assert found.predicted == pytest.approx(torch.sigmoid(logits[::2]).tolist())


def test_a_calibrated_model_is_on_the_diagonal_and_another_is_not():
    found = bins_of(*draw(200_000, seed=1)).groups()
    assert len(found.count) == 12
    assert max(found.count) < 1.5 * min(found.count)
    assert found.predicted == sorted(found.predicted)
    assert found.observed == pytest.approx(found.predicted, rel=0.15)
    high = bins_of(*draw(200_000, seed=1, shift=1.0)).groups()
    assert all(o > 1.2 * p for o, p in zip(high.observed, high.predicted, strict=True))


def test_batches_and_extreme_logits_are_counted():
    logits, labels = draw(1_000, seed=2)
    logits[:3] = torch.tensor([float("inf"), -float("inf"), 1e30])
    whole = bins_of(logits, labels).groups()
    parts = CalibrationBins()
    for one, other in zip(logits.split(7), labels.split(7), strict=True):
        parts.add(one, torch.sigmoid(one), other)
    assert parts.groups().count == whole.count
    assert parts.groups().predicted == pytest.approx(whole.predicted)
    assert sum(whole.count) == 1_000


def test_without_examples_there_are_no_groups():
    assert ClickMetrics().calibration().count == []


def test_metrics_of_click_models_have_a_calibration():
    logits, labels = draw(500, seed=3)
    metrics = ClickMetrics(exact_examples=100)  # beyond the limit of the exact AUC
    metrics.add(logits.float(), labels.float())
    found = metrics.calibration()
    total = sum(n * p for n, p in zip(found.count, found.predicted, strict=True))
    result = metrics.result()
    assert sum(found.count) == 500
    assert total / float(labels.sum()) == pytest.approx(result["calibration"], rel=1e-6)
