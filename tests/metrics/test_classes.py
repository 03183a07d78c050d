import numpy as np
import pytest
import torch

from outsize.metrics import ClassMetrics


def f1(predicted, wanted):
    """2·precision·recall / (precision + recall) of one class, 0 where it is undefined."""
    hits = int(np.sum(predicted & wanted))
    if not hits:
        return 0.0
    precision, recall = hits / predicted.sum(), hits / wanted.sum()
    return 2 * precision * recall / (precision + recall)


def test_metrics_of_one_class_follow_their_definitions():
    draw = np.random.default_rng(0)
    logits, labels = draw.normal(size=(50, 6)), draw.integers(0, 4, 50)
    logits[:, 5] = -9.0  # never predicted, and never a label
    metrics = ClassMetrics(6)
    for part in (slice(0, 7), slice(7, 7), slice(7, 50)):
        metrics.add(torch.tensor(logits[part]).float(), torch.tensor(labels[part]))
    found, best = metrics.result(), logits.argmax(axis=1)
    occurring = sorted({*best, *labels})
    assert 5 not in occurring
    assert 4 in occurring, "a class that is predicted but never a label counts as 0"
    assert found["accuracy"] == pytest.approx(np.mean(best == labels))
    assert found["macro_f1"] == pytest.approx(np.mean([f1(best == c, labels == c)
                                                       for c in occurring]))  # fmt: skip
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = -np.log(shares[np.arange(50), labels]).mean()
    assert found["loss"] == pytest.approx(expected, rel=1e-6)
    assert metrics.num_examples == 50


def test_metrics_of_several_classes_follow_their_definitions():
    draw = np.random.default_rng(1)
    logits, labels = draw.normal(size=(40, 5)), draw.random((40, 5)) < 0.3
    labels[:, 4] = False  # a class without labels counts as 0, as in scikit-learn
    metrics = ClassMetrics(5, multi_label=True)
    for part in (slice(0, 11), slice(11, 40)):
        metrics.add(torch.tensor(logits[part]).float(), torch.tensor(labels[part]).float())
    found, predicted = metrics.result(), logits > 0
    assert found["micro_f1"] == pytest.approx(f1(predicted.ravel(), labels.ravel()))
    expected = np.mean([f1(predicted[:, c], labels[:, c]) for c in range(5)])
    assert found["macro_f1"] == pytest.approx(expected)
    share = 1 / (1 + np.exp(-logits))
    loss = -np.where(labels, np.log(share), np.log(1 - share)).mean()
    assert found["loss"] == pytest.approx(loss, rel=1e-6)
    assert "accuracy" not in found


def test_without_examples_no_metric_exists():
    assert ClassMetrics(3).result() == {"loss": None, "accuracy": None, "macro_f1": None}
    empty = ClassMetrics(3, multi_label=True).result()
    assert empty == {"loss": None, "micro_f1": None, "macro_f1": None}
