"""What every click model does, simply by being in `CLICK_MODELS`."""

import math

import pytest
import torch
import torch.nn.functional as F
from click_inputs import make_batch, make_embeddings

import outsize
from outsize.data import SyntheticConfig
from outsize.errors import ConfigError, DataError
from outsize.models import CLICK_MODELS
from outsize.training.config import OptimizerConfig, RunConfig, TrainConfig
from outsize.training.store_config import StoreConfig

SIZES = {"user": 12, "item": 9}
WITHOUT_DENSE = {"gmf"}
SHAPES = [
    (kind, num_dense)
    for kind in CLICK_MODELS
    for num_dense in (0, 3)
    if not (num_dense and kind in WITHOUT_DENSE)
]
every_model = pytest.mark.parametrize("kind", CLICK_MODELS)
every_shape = pytest.mark.parametrize(("kind", "num_dense"), SHAPES)


def build(kind, num_dense=0, rows="store", seed=0):
    return CLICK_MODELS[kind]().build(num_dense, make_embeddings(SIZES, kind=rows), seed)


def flat_bags(ids):
    """One id each, written as flat values with offsets."""
    return {name: (values, torch.arange(len(values))) for name, values in ids.items()}


@every_shape
def test_it_gives_a_finite_float32_logit_for_each_example(kind, num_dense):
    logits = build(kind, num_dense)(*make_batch(SIZES, num_dense))
    assert logits.shape == (6,)
    assert logits.dtype == torch.float32
    assert torch.isfinite(logits).all()


@every_shape
def test_an_empty_batch_gives_no_logits(kind, num_dense):
    assert build(kind, num_dense)(*make_batch(SIZES, num_dense, batch=0)).shape == (0,)


@every_shape
def test_tables_and_a_store_give_the_same_logits(kind, num_dense):
    batch = make_batch(SIZES, num_dense)
    over_store, over_tables = (build(kind, num_dense, rows)(*batch) for rows in ("store", "tables"))
    assert torch.equal(over_store, over_tables)


@every_shape
def test_examples_do_not_influence_each_other(kind, num_dense):
    dense, ids = make_batch(SIZES, num_dense)
    model = build(kind, num_dense)
    alone = [model(dense[i : i + 1], {n: v[i : i + 1] for n, v in ids.items()}) for i in range(6)]
    torch.testing.assert_close(torch.cat(alone), model(dense, ids))


@every_model
@pytest.mark.parametrize("rows", ["store", "tables"])
def test_a_bag_of_one_is_an_id(kind, rows):
    dense, ids = make_batch(SIZES, 0)
    model = build(kind, rows=rows)
    assert torch.equal(model(dense, ids), model(dense, flat_bags(ids)))


@every_model
def test_longer_bags_are_pooled_before_the_model_sees_them(kind):
    model = build(kind)
    rows = {"user": torch.tensor([[1, 2, 2], [0, 5, 7]]), "item": torch.tensor([[3], [4]])}
    pooled = torch.stack(
        [model.embeddings.store.read(ids, table=name).sum(dim=1) for name, ids in rows.items()],
        dim=1,
    )
    dense = torch.empty(2, 0)
    expected = model.eval()(dense, rows)
    model.embeddings.stacked = lambda ids: pooled
    torch.testing.assert_close(model(dense, {}), expected)


@every_shape
@pytest.mark.parametrize("rows", ["store", "tables"])
def test_a_gradient_reaches_every_parameter_and_every_number_of_a_row(kind, num_dense, rows):
    model = build(kind, num_dense, rows)
    dense, ids = make_batch(SIZES, num_dense, batch=64)
    labels = torch.arange(64.0) % 2
    F.binary_cross_entropy_with_logits(model(dense, ids), labels).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name
    if rows == "store":
        (rows_grad,) = model.embeddings.store.pending.merge().gradients
    else:
        rows_grad = torch.cat([t.weight.grad for t in model.embeddings.tables.values()])
    assert rows_grad.any(dim=0).all()


@every_shape
def test_the_seed_decides_the_weights(kind, num_dense):
    batch = make_batch(SIZES, num_dense)
    one, same, other = (build(kind, num_dense, seed=seed)(*batch) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert torch.equal(one, other) == (kind == "logistic")  # which starts from zeros


@every_shape
def test_its_state_can_be_loaded_into_another(kind, num_dense):
    batch = make_batch(SIZES, num_dense)
    one, other = (build(kind, num_dense, seed=seed) for seed in (1, 2))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(*batch), other(*batch))


@every_shape
def test_autocast_gives_nearly_the_same_float32_logits(kind, num_dense):
    batch = make_batch(SIZES, num_dense)
    model = build(kind, num_dense)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(*batch)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, model(*batch), atol=0.05, rtol=0.05)
    logits.sum().backward()


@every_model
def test_double_precision_rows_are_read_in_the_type_of_the_dense_features(kind):
    specs = [outsize.TableSpec(n, s, 4, dtype=torch.float64) for n, s in SIZES.items()]
    tables = {spec.name: outsize.FullTable(spec) for spec in specs}
    features = [outsize.FeatureSpec(name) for name in SIZES]
    embeddings = outsize.EmbeddingCollection(features, tables)
    model = CLICK_MODELS[kind]().build(0, embeddings, 0)
    torch.testing.assert_close(
        model(*make_batch(SIZES, 0)), build(kind)(*make_batch(SIZES, 0)), atol=1e-5, rtol=1e-5
    )


@every_model
def test_a_negative_number_of_dense_features_is_refused(kind):
    with pytest.raises(ConfigError, match="num_dense must be >= 0, but got -1"):
        build(kind, num_dense=-1)


@every_model
def test_rows_of_different_widths_are_refused(kind):
    specs = [outsize.TableSpec("user", 12, 4), outsize.TableSpec("item", 9, 5)]
    features = [outsize.FeatureSpec(name) for name in SIZES]
    embeddings = outsize.EmbeddingCollection(features, outsize.LocalStore(specs))
    with pytest.raises(ConfigError, match="differ in width"):
        CLICK_MODELS[kind]().build(0, embeddings, 0)


@every_model
def test_a_missing_feature_is_named(kind):
    with pytest.raises(DataError, match="no feature 'item'"):
        build(kind)(torch.empty(1, 0), {"user": torch.tensor([0])})


@every_shape
def test_it_learns_more_than_the_click_rate(kind, num_dense):
    data = SyntheticConfig(
        num_train=4_000, num_validation=2_000, num_test=10, num_dense=num_dense,
        vocabulary=(30, 20), skew=0.5, num_clusters=4, interactions=0.5, signal=2.0,
    )  # fmt: skip
    config = RunConfig(
        data=data,
        model=CLICK_MODELS[kind](),
        embeddings=StoreConfig(dim=5),
        optimizer=OptimizerConfig(learning_rate=0.05 if kind == "logistic" else 0.005),
        train=TrainConfig(batch_size=200, epochs=2),
    )
    best = outsize.train(config, quiet=True).best
    rate = data.click_rate
    base_rate_loss = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    assert best["loss"] < base_rate_loss - 0.05
    assert best["auc"] > 0.7
