"""What every way to find negatives promises, simply by being in `NEGATIVES`."""

import dataclasses

import pytest
import torch
from item_sources import Towers

from outsize.errors import ConfigError
from outsize.negatives import NEGATIVES

SMALL = {
    "cache": {"num_negatives": 3},
    "queue": {"num_items": 12},
    "uniform": {"num_negatives": 5},
    "top-items": {"num_negatives": 3, "num_candidates": 6, "refresh_every": 2},
}
KEYS = torch.tensor([3, 7, 3, 20])
ROWS = torch.tensor([0, 1, 2, 9])
KNOWN = torch.tensor([[4, 5, -1], [-1, -1, -1], [9, 3, 1], [7, -1, -1]])


@pytest.fixture(params=sorted(NEGATIVES))
def kind(request):
    return request.param


def build(kind, towers, seed=0, **options):
    counts = torch.arange(1, len(towers.items) + 1)
    config = NEGATIVES[kind](**{**SMALL.get(kind, {}), "beta": 4.0, **options})
    loss = config.build(towers.source(counts), seed)
    loss.begin()
    return loss


def step(loss, towers, optimizer=None, known=KNOWN):
    queries = towers.encode_queries(ROWS)
    report = loss(queries, {"id": KEYS}, KEYS, known)
    towers.zero_grad()
    report.loss.backward()
    if optimizer is not None:
        optimizer.step()
    return report


def test_a_loss_is_a_number_with_gradients_on_both_sides(kind):
    towers = Towers()
    report = step(build(kind, towers), towers)
    assert report.loss.ndim == 0
    assert report.losses.shape == (4,)
    assert (report.losses >= 0).all()
    assert not report.losses.requires_grad
    assert towers.queries.grad[ROWS].abs().sum() > 0
    assert towers.items.grad[KEYS].abs().sum() > 0


def variants():
    """Every kind as it is, and with each option that it has which changes what is encoded."""
    options = {"in_batch": True, "symmetric": True, "warmup_steps": 1, "refresh": 0.5}
    for kind, config in sorted(NEGATIVES.items()):
        fields = {field.name for field in dataclasses.fields(config)}
        yield kind, {}
        yield from ((kind, {name: options[name]}) for name in sorted(fields & options.keys()))


@pytest.mark.parametrize(("kind", "options"), list(variants()))
def test_forward_encodes_once_and_everything_else_encodes_without_gradients(kind, options):
    towers, had_gradients = Towers(), []

    def encode(features):
        had_gradients.append(torch.is_grad_enabled())
        return towers.encode_items(features)

    source = dataclasses.replace(towers.source(torch.arange(1, 31)), encode=encode)
    loss = NEGATIVES[kind](**{**SMALL.get(kind, {}), **options}).build(source, 0)
    for call in (loss.begin, loss.refresh):
        call()
        assert not any(had_gradients)
    for _ in range(3):
        had_gradients.clear()
        report = step(loss, towers)
        assert had_gradients == [True]
        had_gradients.clear()
        with torch.no_grad():
            loss(towers.encode_queries(ROWS), {"id": KEYS}, KEYS, KNOWN)
        assert had_gradients == [False]
        loss.commit(report)
        loss.refresh()
        assert not any(had_gradients)


def test_a_forward_pass_changes_nothing(kind):
    towers = Towers()
    loss = build(kind, towers)
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    step(loss, towers)
    for name, value in loss.state_dict().items():
        if not name.endswith("_extra_state"):  # draws are counted there
            assert torch.equal(value, before[name])


def test_known_positives_get_no_gradient_unless_they_are_another_querys_positive(kind):
    towers = Towers()
    only = torch.tensor([[key for key in range(30) if key not in (3, 7, 20, 11)]] * 4)
    loss = build(kind, towers)
    for _ in range(5):
        report = loss(towers.encode_queries(ROWS), {"id": KEYS}, KEYS, only)
        towers.zero_grad()
        report.loss.backward()
        touched = towers.items.grad.abs().sum(dim=1).nonzero().flatten().tolist()
        assert set(touched) <= {3, 7, 20, 11}
        loss.commit(report)


def test_training_lowers_the_exact_loss(kind):
    torch.manual_seed(0)
    towers = Towers()
    loss, exact = build(kind, towers), build("exact", towers)
    optimizer = torch.optim.Adam(towers.parameters(), lr=0.05)
    before = step(exact, towers).loss.item()
    for _ in range(40):
        loss.commit(step(loss, towers, optimizer))
    assert step(exact, towers).loss.item() < before - 0.5


def test_a_loaded_loss_goes_on_as_the_saved_one_would(kind):
    towers = Towers()
    first = build(kind, towers, seed=3)
    for _ in range(3):
        first.commit(step(first, towers))
    second = build(kind, towers, seed=0)
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        one, other = step(first, towers), step(second, towers)
        assert torch.equal(one.losses, other.losses)
        first.commit(one)
        second.commit(other)
    assert first.latest_metrics() == second.latest_metrics()


def test_beta_can_be_learned(kind):
    towers = Towers()
    loss = build(kind, towers, learn_beta=True)
    report = step(loss, towers)
    (parameter,) = loss.parameters()
    assert report.metrics["beta"].item() == pytest.approx(4.0)
    assert parameter.grad.abs() > 0
    assert not list(build(kind, towers).parameters())


def test_metrics_are_scalars_and_named(kind):
    towers = Towers()
    loss = build(kind, towers)
    report = step(loss, towers)
    loss.commit(report)
    assert 0 < report.metrics["p_positive"].item() < 1
    assert all(value.ndim == 0 for value in report.metrics.values())
    assert all(isinstance(value, float) for value in loss.latest_metrics().values())


def test_a_beta_of_zero_is_refused(kind):
    with pytest.raises(ConfigError, match="beta must be > 0, but got 0"):
        NEGATIVES[kind](beta=0)


def test_every_field_of_a_config_has_a_default(kind):
    assert dataclasses.is_dataclass(NEGATIVES[kind]())


def test_the_exact_loss_is_softmax_over_all_items():
    towers = Towers()
    report = step(build("exact", towers), towers)
    logits = 4.0 * towers.encode_queries(ROWS) @ towers.encode_items({"id": torch.arange(30)}).T
    for query, others in enumerate(KNOWN.tolist()):
        for key in others:
            if key >= 0 and key != KEYS[query]:
                logits[query, key] = -torch.inf
    expected = -torch.log_softmax(logits, dim=1)[torch.arange(4), KEYS]
    torch.testing.assert_close(report.losses, expected.detach())


def test_a_queue_of_constants_has_the_loss_and_the_query_gradient_of_a_softmax_over_it():
    towers = Towers()
    loss = build("queue", towers, precision="float32")
    for keys in ([0, 1, 2], [10, 11]):
        keys = torch.tensor(keys)
        report = loss(towers.encode_queries(keys), {"id": keys}, keys)
        loss.commit(report)
    towers.zero_grad()
    queries = towers.encode_queries(ROWS).detach().requires_grad_()
    report = loss(queries, {"id": KEYS}, KEYS, None)
    report.loss.backward()
    held = towers.encode_items({"id": torch.tensor([0, 1, 2, 10, 11])}).detach()
    own = towers.encode_items({"id": KEYS}).detach()
    again = queries.detach().clone().requires_grad_()
    logits = 4.0 * again @ torch.cat((own[[0, 1, 3]], held)).T
    expected = -torch.log_softmax(logits, dim=1)[torch.arange(4), torch.tensor([0, 1, 0, 2])]
    expected.mean().backward()
    torch.testing.assert_close(report.losses, expected.detach())
    torch.testing.assert_close(queries.grad, again.grad)


def test_even_draws_estimate_the_softmax_over_all_items():
    towers = Towers(num_items=200)
    exact = step(build("exact", towers), towers, known=None)
    loss = build("uniform", towers, num_negatives=100_000)
    estimate = step(loss, towers, known=None)
    torch.testing.assert_close(estimate.losses, exact.losses, rtol=0.01, atol=0.01)


def test_the_best_items_come_from_an_index_as_old_as_it_is_said_to_be():
    towers = Towers()
    loss = build("top-items", towers, in_batch=False, num_candidates=1, num_negatives=1)
    rotated = towers.items.data.roll(1, dims=0)
    stale = towers.encode_items({"id": torch.arange(30)}).detach()
    towers.items.data = rotated
    scores = towers.encode_queries(ROWS).detach() @ stale.T
    scores[torch.arange(4), KEYS] = -torch.inf
    step(loss, towers, known=None)
    touched = towers.items.grad.abs().sum(dim=1).nonzero().flatten().tolist()
    assert set(touched) == set(scores.argmax(dim=1).tolist()) | set(KEYS.tolist())
    for number in range(2):  # refresh_every = 2
        assert loss.latest_metrics()["age"] == number
        loss.commit(step(loss, towers, known=None))
    assert loss.latest_metrics()["age"] == 0


def test_popularity_is_corrected_in_a_batch_by_the_inverse_share():
    towers = Towers()
    plain, corrected = (build("in-batch", towers, log_q=flag) for flag in (False, True))
    keys = torch.tensor([0, 29])
    queries = towers.encode_queries(ROWS[:2])
    one, other = (loss(queries, {"id": keys}, keys).losses for loss in (plain, corrected))
    shares = torch.tensor([30.0, 1.0]) / sum(range(1, 31))  # of the other query's positive
    gap = torch.log(torch.expm1(other)) - torch.log(torch.expm1(one))
    torch.testing.assert_close(gap, -torch.log(shares), rtol=1e-4, atol=1e-4)
