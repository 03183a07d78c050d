import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outsize.metrics import NUM_BINS, ClickMetrics, exact_auc, histogram_auc

# Few distinct scores, so that ties are common; and scores of every size.
scores = st.one_of(
    st.integers(-4, 4).map(lambda k: k / 4),
    st.floats(-8, 8, width=32),
    st.floats(-(2.0**100), 2.0**100, width=32),
)
examples = st.lists(st.tuples(scores, st.booleans()), min_size=1, max_size=40)
both_classes = examples.filter(lambda pairs: len({label for _, label in pairs}) == 2)


def as_tensors(pairs):
    logits = torch.tensor([score for score, _ in pairs], dtype=torch.float32)
    return logits, torch.tensor([float(label) for _, label in pairs])


def auc_by_definition(logits, labels):
    """The share of (positive, negative) pairs in the right order, ties counted half."""
    positives, negatives = logits[labels == 1].tolist(), logits[labels == 0].tolist()
    won = sum((one > two) + (one == two) / 2 for one in positives for two in negatives)
    return won / (len(positives) * len(negatives))


def measure(logits, labels, **options):
    metrics = ClickMetrics(**options)
    metrics.add(logits, labels)
    return metrics


def draw(count, seed):
    """Scores and labels that agree with them better than chance."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, generator=generator) * 2
    labels = (torch.rand(count, generator=generator) < torch.sigmoid(logits)).float()
    return logits, labels


# Area under the ROC curve


@settings(deadline=None)
@given(both_classes)
def test_the_exact_auc_is_the_share_of_pairs_in_order(pairs):
    logits, labels = as_tensors(pairs)
    expected = auc_by_definition(logits, labels)
    assert exact_auc(logits, labels) == pytest.approx(expected, abs=1e-12)
    found = measure(logits, labels).auc()
    assert found.value == pytest.approx(expected, abs=1e-12)
    assert found.error == 0


def test_auc_of_small_cases_by_hand():
    labels = torch.tensor([0.0, 0.0, 1.0, 1.0])
    assert exact_auc(torch.tensor([1.0, 2.0, 3.0, 4.0]), labels) == 1.0
    assert exact_auc(torch.tensor([4.0, 3.0, 2.0, 1.0]), labels) == 0.0
    assert exact_auc(torch.tensor([1.0, 3.0, 2.0, 4.0]), labels) == 0.75
    assert exact_auc(torch.tensor([1.0, 2.0, 2.0, 4.0]), labels) == 0.875
    assert exact_auc(torch.zeros(4), labels) == 0.5


@settings(deadline=None)
@given(both_classes)
def test_the_auc_of_reversed_scores_is_the_rest(pairs):
    logits, labels = as_tensors(pairs)
    assert exact_auc(-logits, labels) == pytest.approx(1 - exact_auc(logits, labels), abs=1e-12)
    assert exact_auc(logits, 1 - labels) == pytest.approx(1 - exact_auc(logits, labels), abs=1e-12)


counts = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12)


@settings(deadline=None)
@given(counts.filter(lambda bins: all(map(any, zip(*bins, strict=True)))))
def test_a_histogram_counts_pairs_in_a_bin_half(bins):
    positives, negatives = torch.tensor(bins).t()
    logits = torch.arange(len(bins), dtype=torch.float32)
    scores = torch.cat([logits.repeat_interleave(positives), logits.repeat_interleave(negatives)])
    labels = torch.cat([torch.ones(positives.sum()), torch.zeros(negatives.sum())])
    found = histogram_auc(positives, negatives)
    assert found.value == pytest.approx(exact_auc(scores, labels), abs=1e-12)
    tied = sum(p * n for p, n in bins) / (positives.sum().item() * negatives.sum().item())
    assert found.error == pytest.approx(tied / 2)


@settings(deadline=None)
@given(both_classes)
@example([(1e-6, True), (0.0, False)])
@example([(0.0, True), (1e-6, False)])
@example([(50.0, True), (40.0, False), (-1000.0, True), (-2000.0, False)])
def test_the_histogram_is_never_further_off_than_it_says(pairs):
    logits, labels = as_tensors(pairs)
    found = measure(logits, labels, exact_examples=0).auc()
    assert abs(found.value - auc_by_definition(logits, labels)) <= found.error + 1e-12


def test_the_stated_error_is_reached_when_a_bin_hides_the_order():
    logits, labels = torch.tensor([1e-6, 0.0]), torch.tensor([1.0, 0.0])
    assert exact_auc(logits, labels) == 1.0
    found = measure(logits, labels, exact_examples=0).auc()
    assert (found.value, found.error) == (0.5, 0.5)


def test_the_histogram_is_close_on_spread_out_scores():
    logits, labels = draw(50_000, seed=1)
    exact = measure(logits, labels).auc().value
    found = measure(logits, labels, exact_examples=49_999).auc()
    assert 0 < found.error < 1e-4
    assert abs(found.value - exact) <= found.error
    assert found.value != exact


def test_bins_are_of_equal_width_in_probability():
    # One example in the middle of each bin: alone in it, so nothing is hidden.
    middles = (torch.arange(NUM_BINS, dtype=torch.float64) + 0.5) / NUM_BINS
    labels = (torch.arange(NUM_BINS) % 2).float()
    found = measure(torch.logit(middles).float(), labels, exact_examples=0).auc()
    assert found.error == 0
    assert found.value == pytest.approx(exact_auc(middles, labels), abs=1e-12)


@pytest.mark.parametrize("sizes", [(100,), (60, 40), (1,) * 100])
def test_one_example_past_the_limit_moves_all_scores_into_the_histogram(sizes):
    # Scores a hundredth of a bin apart, which only the exact area can tell.
    logits, labels = torch.arange(101) * 1e-7, (torch.arange(101) % 2).float()
    metrics, first = ClickMetrics(exact_examples=100), 0
    for size in sizes:
        metrics.add(logits[first : first + size], labels[first : first + size])
        first += size
    assert metrics.auc().error == 0
    assert metrics.auc().value == exact_auc(logits[:100], labels[:100]) != 0.5
    assert "auc_error" not in metrics.result()
    metrics.add(logits[100:], labels[100:])
    assert (metrics.auc().value, metrics.auc().error) == (0.5, 0.5)
    assert metrics.result()["auc_error"] == 0.5
    assert metrics.num_examples == 101


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("exact_examples", [0, 100])
def test_one_class_has_no_auc_and_no_entropy(label, exact_examples):
    metrics = measure(torch.arange(5.0), torch.full((5,), label), exact_examples=exact_examples)
    assert metrics.auc().value is None
    result = metrics.result()
    assert result["auc"] is None
    assert result["normalized_entropy"] is None
    assert (result["calibration"] is None) == (label == 0)
    assert math.isfinite(result["loss"])
    assert exact_auc(torch.arange(5.0), torch.full((5,), label)) is None


def test_no_examples_give_no_numbers():
    metrics = ClickMetrics()
    assert metrics.num_examples == 0
    assert metrics.auc().value is None
    assert set(metrics.result().values()) == {None}
    metrics.add(torch.empty(0), torch.empty(0))
    assert {"loss", "auc"} <= metrics.result().keys()
    assert set(metrics.result().values()) == {None}


# Loss, entropy, calibration


@settings(deadline=None)
@given(examples)
def test_the_loss_is_exact_for_any_logit(pairs):
    logits, labels = as_tensors(pairs)
    signed = np.where(labels.numpy() == 1, -logits.double().numpy(), logits.double().numpy())
    expected = np.logaddexp(0, signed).mean()
    result = measure(logits, labels).result()
    assert result["loss"] == pytest.approx(expected, rel=1e-12)
    in_torch = torch.nn.functional.binary_cross_entropy_with_logits(
        logits.double(), labels.double()
    )
    assert result["loss"] == pytest.approx(in_torch.item(), rel=1e-12)


@pytest.mark.parametrize(
    ("logit", "label", "loss"),
    [
        (0.0, 1.0, math.log(2)),
        (100.0, 0.0, 100.0),
        (-3e38, 1.0, pytest.approx(3e38)),
        # exp(-60), which a sigmoid in float32 has long rounded away
        (60.0, 1.0, pytest.approx(8.75651e-27, rel=1e-5)),
    ],
)
def test_the_loss_of_an_extreme_logit_by_hand(logit, label, loss):
    found = measure(torch.tensor([logit]), torch.tensor([label])).result()["loss"]
    assert found == loss


@pytest.mark.parametrize("num_clicks", [1, 30, 50, 99])
def test_predicting_the_base_rate_has_entropy_and_calibration_1(num_clicks):
    labels = (torch.arange(100) < num_clicks).float()
    logit = math.log(num_clicks / (100 - num_clicks))
    result = measure(torch.full((100,), logit), labels).result()
    assert result["normalized_entropy"] == pytest.approx(1, abs=1e-6)
    assert result["calibration"] == pytest.approx(1, abs=1e-6)
    assert result["auc"] == 0.5


def test_skill_is_an_entropy_below_1_and_its_opposite_one_above():
    logits, labels = draw(2000, seed=2)
    assert measure(logits, labels).result()["normalized_entropy"] < 0.9
    assert measure(-logits, labels).result()["normalized_entropy"] > 1.1


def test_calibration_is_mean_prediction_over_mean_label():
    logits = torch.logit(torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float64)).float()
    result = measure(logits, torch.tensor([0.0, 0.0, 0.0, 1.0])).result()
    assert result["calibration"] == pytest.approx(2.0, rel=1e-6)
    result = measure(logits, torch.ones(4)).result()
    assert result["calibration"] == pytest.approx(0.5, rel=1e-6)


# Streams


@settings(deadline=None, max_examples=50)
@given(examples, st.lists(st.integers(0, 40), max_size=4), st.sampled_from([0, 10, 10_000]))
def test_how_examples_are_cut_into_batches_does_not_matter(pairs, cuts, exact_examples):
    logits, labels = as_tensors(pairs)
    whole = measure(logits, labels, exact_examples=exact_examples).result()
    metrics = ClickMetrics(exact_examples=exact_examples)
    borders = [0, *sorted(min(cut, len(pairs)) for cut in cuts), len(pairs)]
    for first, stop in itertools.pairwise(borders):
        metrics.add(logits[first:stop], labels[first:stop])
    assert metrics.num_examples == len(pairs)
    found = metrics.result()
    assert found.keys() == whole.keys()
    for name, value in whole.items():
        assert found[name] == (value if value is None else pytest.approx(value, rel=1e-12))


def test_a_result_can_be_read_between_batches():
    logits, labels = draw(3000, seed=3)
    metrics = ClickMetrics(exact_examples=1500)
    for first in range(0, 3000, 1000):
        metrics.add(logits[first : first + 1000], labels[first : first + 1000])
        seen = measure(logits[: first + 1000], labels[: first + 1000], exact_examples=1500)
        assert metrics.result() == pytest.approx(seen.result())


def test_past_the_limit_memory_stays_that_of_the_histogram():
    metrics = ClickMetrics(exact_examples=200_000)
    for seed in range(3):
        metrics.add(*draw(100_000, seed))
    assert metrics.auc().error > 0
    assert len(pickle.dumps(metrics)) < 2 * NUM_BINS * 8 + 10_000


def test_logits_of_a_model_leave_their_graph():
    logits = torch.randn(4, generator=torch.Generator().manual_seed(4)).requires_grad_()
    metrics = measure(logits * 2, torch.tensor([0.0, 1.0, 0.0, 1.0]))
    assert (
        metrics.result()
        == measure(logits.detach() * 2, torch.tensor([0.0, 1.0, 0.0, 1.0])).result()
    )


def test_logits_of_half_width_are_counted_at_their_rounded_value():
    logits, labels = draw(500, seed=5)
    half = logits.bfloat16()
    assert measure(half, labels).result() == measure(half.float(), labels).result()
