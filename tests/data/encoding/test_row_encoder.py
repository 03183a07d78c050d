"""New rows are encoded as training encoded them, by an encoder read back from its files."""

import json

import numpy as np
import pytest
import torch

from outsize.data import TabularConfig
from outsize.data.encoding import VocabularyConfig
from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.encoder_files import encoder_from_state, encoder_state
from outsize.data.encoding.row_encoder import regroup
from outsize.data.encoding.rows import read_rows
from outsize.data.encoding.splits import ColumnSplit
from outsize.json_files import SchemaError, read_sealed, sealed


def write_log(path, num_rows=400):
    draw = np.random.default_rng(0)
    lines = ["label,age,price,city,device,tags,set"]
    for number in range(num_rows):
        tags = "|".join(f"t{t}" for t in draw.integers(0, 9, draw.integers(0, 4)))
        age = "" if number % 17 == 0 else f"{draw.normal(40, 10):.3f}"
        price = f"{draw.exponential(9) - 1:.2f}"
        city, device = (f"{kind}{draw.integers(0, 30)}" for kind in "cd")
        kind = ("train", "valid", "test")[min(2, number // 150)]
        lines.append(f"{number % 2},{age},{price},{city},{device},{tags},{kind}")
    path.write_text("\n".join(lines) + "\n")


def make_config(path, **settings):
    return TabularConfig(
        path=(str(path),), label="label", standardize=("age",), log1p=("price",),
        categorical=("city", "device"), multi_valued=("tags",), max_length=2, shuffle=False,
        vocabulary=VocabularyConfig(min_count=2, hashed=("device",), num_buckets=11),
        split=ColumnSplit("set", validation=("valid",), test=("test",)), **settings,
    )  # fmt: skip


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log, its configuration and the data that was encoded from it; tests only read them."""
    path = tmp_path_factory.mktemp("log") / "log.csv"
    write_log(path)
    config = make_config(path)
    return path, config, config.build()


def encoded(encoder, path, config):
    for rows in read_rows([path], config.recipe(), BadRows()):
        yield encoder.encode(rows)


def assert_equal_batches(one, other):
    assert torch.equal(one.dense, other.dense)
    assert torch.equal(one.labels, other.labels)
    assert one.ids.keys() == other.ids.keys()
    for name, ids in one.ids.items():
        for mine, theirs in zip(as_tensors(ids), as_tensors(other.ids[name]), strict=True):
            assert torch.equal(mine, theirs)


def as_tensors(ids):
    return (ids,) if isinstance(ids, torch.Tensor) else (ids.values, ids.offsets)


def test_the_encoder_gives_the_examples_of_training(log):
    path, config, data = log
    (rows,) = encoded(data.row_encoder(), path, config)
    encoder = data.row_encoder()
    assert_equal_batches(encoder.batch(rows.take(slice(0, 150))), data.examples("train", 0, 150))
    assert_equal_batches(encoder.batch(rows.take(slice(300, 400))), data.examples("test", 0, 100))


def test_signed_logarithms_are_standardized_limited_and_survive_their_state(tmp_path):
    draws = np.random.default_rng(1)
    net = draws.choice([-1.0, 1.0], 500) * draws.lognormal(1, 2, 500)
    net[7] = -1e30
    lines = [f"{i % 2},{'' if i == 9 else repr(float(x))},c{i % 5}" for i, x in enumerate(net)]
    (tmp_path / "log.csv").write_text("\n".join(["label,net,city", *lines]) + "\n")
    config = TabularConfig(
        path=(str(tmp_path / "log.csv"),), label="label", signed_log=("net",),
        categorical=("city",), shuffle=False,
    )  # fmt: skip
    encoder = config.build().row_encoder()
    (rows,) = encoded(encoder, tmp_path / "log.csv", config)
    known = np.delete(np.sign(net) * np.log1p(np.abs(net)), 9)
    expected = np.insert((known - known.mean()) / known.std(), 9, 0.0)
    assert expected[7] < -10
    assert rows.dense[:, 0] == pytest.approx(np.maximum(expected, -10.0), rel=1e-5, abs=1e-6)
    facts, tensors = encoder_state(encoder)
    again = encoder_from_state(json.loads(json.dumps(facts)), tensors)
    (same,) = encoded(again, tmp_path / "log.csv", config)
    assert np.array_equal(same.dense, rows.dense)


def test_its_state_survives_json_and_tensors(log):
    path, config, data = log
    encoder = data.row_encoder()
    facts, tensors = encoder_state(encoder)
    again = encoder_from_state(json.loads(json.dumps(facts)), tensors)
    (before,), (after,) = encoded(encoder, path, config), encoded(again, path, config)
    assert_equal_batches(encoder.batch(before), again.batch(after))
    assert tensors["city.keys"].numel() == data.vocabularies["city"] - 1
    assert tensors["device.hashes"].numel() == 9


@pytest.mark.parametrize(
    "damage",
    [
        lambda facts, tensors: facts["recipe"].pop("dense"),
        lambda facts, tensors: facts["moments"].clear(),
        lambda facts, tensors: facts["num_ids"].update(city=3),
        lambda facts, tensors: tensors.pop("city.keys"),
        lambda facts, tensors: tensors.update({"city.keys": tensors["city.keys"].int()}),
        lambda facts, tensors: tensors.update({"device.hashes": torch.zeros(2, 9).long()}),
        lambda facts, tensors: tensors.update({"town.keys": tensors["city.keys"]}),
    ],
)
def test_a_state_whose_parts_disagree_is_refused(log, damage):
    facts, tensors = encoder_state(log[2].row_encoder())
    facts = json.loads(json.dumps(facts))
    damage(facts, tensors)
    with pytest.raises(SchemaError):
        encoder_from_state(facts, tensors)


def test_moments_of_an_older_folder_are_computed_again(tmp_path):
    write_log(tmp_path / "log.csv")
    data = make_config(tmp_path / "log.csv").build()
    before = data.row_encoder().moments["age"].state()
    path = data.folder / "manifest.json"
    manifest = read_sealed(path, {})
    del manifest["moments"]
    path.write_text(sealed(manifest))
    assert make_config(tmp_path / "log.csv").build().row_encoder().moments["age"].state() == before


@pytest.mark.parametrize("size", [1, 7, 99, 400, 1000])
def test_rows_are_regrouped_without_a_change(log, size):
    path, config, data = log
    encoder = data.row_encoder()
    (whole,) = encoded(encoder, path, config)
    parts = [whole.take(slice(a, b)) for a, b in ((0, 3), (3, 3), (3, 150), (150, 400))]
    groups = list(regroup(parts, size))
    assert [len(group) for group in groups[:-1]] == [size] * (len(groups) - 1)
    assert 0 < len(groups[-1]) <= size
    together = type(whole).concatenate(groups)
    assert_equal_batches(encoder.batch(together), encoder.batch(whole))


def test_no_rows_make_no_groups():
    assert list(regroup([], 5)) == []


def test_few_rows_are_encoded_as_many_are(tmp_path, monkeypatch):
    write_log(tmp_path / "log.csv")
    config = make_config(tmp_path / "log.csv", cache=str(tmp_path / "cache"))
    encoder = config.build().row_encoder()
    found = []
    for few_rows, few_values in ((1024, 64), (0, 0)):
        monkeypatch.setattr("outsize.data.encoding.row_encoder._FEW_ROWS", few_rows)
        monkeypatch.setattr("outsize.data.encoding.column_values._FEW_VALUES", few_values)
        (rows,) = read_rows([tmp_path / "log.csv"], encoder.recipe, BadRows())
        found.append(encoder.encode(rows))
    assert np.array_equal(found[0].ids, found[1].ids)
    assert np.array_equal(found[0].dense, found[1].dense)
    assert len(np.unique(found[0].ids)) > 20
