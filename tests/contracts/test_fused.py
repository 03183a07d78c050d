"""Rows that are updated in the backward pass: the same result, and what they refuse."""

import copy

import pytest
import torch

import outsize
from outsize.errors import ConfigError, NonFiniteError

SPECS = [
    outsize.TableSpec("user", num_rows=40, dim=4),
    outsize.TableSpec("item", num_rows=30, dim=4),
    outsize.TableSpec("country", num_rows=5, dim=3),
]
FEATURES = [
    outsize.FeatureSpec("user"),
    outsize.FeatureSpec("clicked", table="item", pooling="mean", padding_id=-1),
    outsize.FeatureSpec("bought", table="item"),
    outsize.FeatureSpec("country"),
]
OPTIMIZERS = [outsize.RowSGD, outsize.RowAdagrad, outsize.RowFullAdagrad, outsize.RowAdam]


@pytest.fixture(params=["torch", "numba"])
def kernels(request, monkeypatch):
    if request.param == "numba":
        pytest.importorskip("numba")
    monkeypatch.setenv("OUTSIZE_KERNELS", request.param)
    return request.param


def batch(step, size=6):
    draw = torch.Generator().manual_seed(step)

    def ids(num_rows, *shape):
        return (torch.rand(*shape, generator=draw) ** 2 * num_rows).long()

    clicked = ids(30, size, 3)
    clicked[0, 1:] = -1
    return {
        "user": ids(40, size),
        "clicked": clicked,
        "bought": outsize.Bag(ids(30, size), weights=torch.rand(size, generator=draw)),
        "country": ids(5, size),
    }


def train(make, fused, features=FEATURES, specs=SPECS, num_steps=4):
    store = outsize.LocalStore(specs)
    rows = make(store, learning_rate=0.1, fused=fused)
    embeddings = outsize.EmbeddingCollection(features, store)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(rows, 0.5)
    for step in range(num_steps):
        rows.zero_grad()
        vectors = embeddings(batch(step))
        sum(vector.pow(3).sum() for vector in vectors.values()).backward()
        rows.step()
        scheduler.step()
    return store


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("features", [FEATURES, FEATURES[:1]])
def test_the_result_is_that_of_separate_steps(kernels, make, features):
    specs = SPECS[:1] if features is not FEATURES else SPECS
    ours, staged = (train(make, fused, features, specs) for fused in (True, False))
    for name, value in staged.state_dict().items():
        if kernels == "numba" or features is not FEATURES:
            assert torch.equal(value, ours.state_dict()[name]), name
        else:  # torch's own bags round means and weights in another order
            torch.testing.assert_close(value, ours.state_dict()[name])
    assert ours.clocks.sum() > 0


def test_rows_of_16_bits_are_rounded_as_in_separate_steps(kernels):
    specs = [outsize.TableSpec("user", 40, 4, dtype=torch.bfloat16)]
    ours, staged = (
        train(outsize.RowAdagrad, fused, FEATURES[:1], specs) for fused in (True, False)
    )
    assert torch.equal(ours.rows(0), staged.rows(0))


def test_an_empty_batch_changes_nothing(kernels):
    store = outsize.LocalStore(SPECS[:2])
    rows = outsize.RowAdagrad(store, learning_rate=0.1, fused=True)
    embeddings = outsize.EmbeddingCollection(
        [outsize.FeatureSpec(n) for n in ("user", "item")], store
    )
    before = store.rows(0).clone()
    none = torch.empty(0, dtype=torch.int64)
    vectors = embeddings.stacked({"user": none, "item": none})
    assert vectors.shape == (0, 2, 4)
    vectors.sum().backward()
    rows.step()
    assert torch.equal(store.rows(0), before)
    assert store.clocks.sum() == 0


@pytest.fixture
def setup():
    store = outsize.LocalStore(SPECS[:1])
    rows = outsize.RowAdagrad(store, learning_rate=0.1, fused=True)
    embeddings = outsize.EmbeddingCollection([outsize.FeatureSpec("user")], store)
    return store, rows, lambda ids=(1, 2, 1): embeddings({"user": torch.tensor(ids)})["user"].sum()


def test_rows_change_in_backward_and_step_ends_the_step(setup):
    store, rows, loss = setup
    before = store.read(torch.arange(40))
    first = loss()
    assert torch.equal(store.read(torch.arange(40)), before)
    first.backward()
    changed = (store.read(torch.arange(40)) != before).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [1, 2]
    after = store.read(torch.arange(40))
    rows.step()
    assert torch.equal(store.read(torch.arange(40)), after)


def test_accumulation_is_refused(setup):
    _, rows, loss = setup
    loss().backward()
    with pytest.raises(
        ConfigError, match=r"call the row optimizer's step\(\) after every backward"
    ):
        loss().backward()
    rows.step()
    loss().backward()


def test_a_second_backward_through_one_graph_is_refused(setup):
    store, _, loss = setup
    value = loss()
    value.backward(retain_graph=True)
    after = store.read(torch.arange(40))
    with pytest.raises(ConfigError, match="earlier backward pass"):
        value.backward()
    assert torch.equal(store.read(torch.arange(40)), after)


def test_two_look_ups_in_a_step_are_refused(setup):
    _, rows, loss = setup
    first = loss()
    with pytest.raises(ConfigError, match="looked up once per step"):
        loss()
    del first  # its graph is gone, so nothing waits
    kept = loss()
    rows.zero_grad()  # gives that one up
    loss().backward()
    assert kept.requires_grad


def test_skipping_a_step_is_refused(setup):
    _, rows, loss = setup
    loss().backward()
    with pytest.raises(ConfigError, match="cannot be skipped"):
        rows.zero_grad()
    rows.step()
    rows.zero_grad()


def test_clipping_and_loss_scaling_are_refused(setup):
    _, rows, loss = setup
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss()).backward()
    with pytest.raises(ConfigError, match="cannot be clipped"):
        torch.nn.utils.clip_grad_norm_(rows.param_groups[0]["params"], 1.0)
    with pytest.raises(ConfigError, match="cannot be clipped, scaled or read"):
        scaler.unscale_(rows)


def test_non_finite_gradients_change_nothing(setup):
    store, _, loss = setup
    before = store.read(torch.arange(40))
    with pytest.raises(NonFiniteError, match="2 rows are NaN or infinite"):
        (loss() * float("nan")).backward()
    assert torch.equal(store.read(torch.arange(40)), before)
    assert store.clocks.sum() == 0


def test_max_pooling_and_trained_weights_are_refused():
    store = outsize.LocalStore(SPECS)
    outsize.RowSGD(store, fused=True)
    ids = torch.tensor([[1, 2]])
    largest = outsize.FeatureSpec("shown", table="item", pooling="max")
    weights = torch.ones(1, 2, requires_grad=True)
    for feature, bag in ((largest, ids), (FEATURES[2], outsize.Bag(ids, weights=weights))):
        embeddings = outsize.EmbeddingCollection([feature], store)
        with pytest.raises(ConfigError, match="pooled by sum or mean"):
            embeddings({feature.name: bag})


def test_stores_whose_rows_are_elsewhere_are_refused():
    cached = outsize.CachedStore(outsize.LocalStore(SPECS[:1]), num_rows=4)
    with pytest.raises(ConfigError, match="not for this CachedStore: use a LocalStore"):
        outsize.RowSGD(cached, fused=True)


def test_evaluation_and_copies_of_the_store_are_not_fused(setup):
    store, _, loss = setup
    with torch.no_grad():
        loss()
    copied = copy.deepcopy(store)
    assert copied.fused is None
    loss().backward()
    assert torch.equal(
        copied.read(torch.tensor([1])), outsize.LocalStore(SPECS[:1]).read(torch.tensor([1]))
    )
