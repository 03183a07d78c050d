"""Raw rows are scored by an exported model as its run has measured it."""

import json
import math
import shutil

import numpy as np
import pyarrow as pa
import pytest
import torch
from raw_logs import INPUTS, KINDS, TEST_ROWS, as_columns

import outsize
from outsize.errors import ConfigError, DataError, ExportError
from outsize.export import write_exported
from outsize.metrics import ClickMetrics
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import load_click_model


@pytest.fixture
def model(trained):
    return outsize.load_exported(trained("store")[2])


@pytest.fixture
def exported(trained, tmp_path):
    """A copy of an exported folder, to be damaged."""
    return shutil.copytree(trained("store")[2], tmp_path / "copy")


def metrics_of(logits, rows):
    metrics = ClickMetrics()
    metrics.add(torch.as_tensor(logits), torch.tensor([float(row["label"]) for row in rows]))
    return metrics.result()


def evaluated(model, config):
    """The logits of an evaluation of the test split."""
    batches = config.data.build().batches("test", config.train.eval_batch_size)
    with torch.no_grad():
        return torch.cat([model.eval()(batch.dense, batch.ids) for batch in batches]).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_recomputed_from_raw_rows_are_those_reported(trained, kind):
    result, config, folder = trained(kind)
    logits = outsize.load_exported(folder).predict(as_columns(TEST_ROWS), logits=True)
    assert metrics_of(logits, TEST_ROWS) == pytest.approx(result.test, rel=1e-12)
    best, *_ = load_click_model(RunFolder(result.out), config)
    assert np.array_equal(logits, evaluated(best, config))
    card = json.loads((folder / "card.json").read_text())
    assert {"split": "test", "step": result.best["step"], **result.test} in card["metrics"]


def test_a_quantized_model_is_the_one_that_was_measured(trained, tmp_path):
    result, config, _ = trained("tables")
    model, data, _ = load_click_model(RunFolder(result.out), config)
    tables = model.embeddings.tables
    for name in list(tables):
        tables[name] = outsize.quantize(tables[name], columns=2, codes=8)
    expected = evaluated(model, config)
    write_exported(
        tmp_path / "out", model, config.model,
        encoder=data.row_encoder(), batch_size=config.train.eval_batch_size,
    )  # fmt: skip
    logits = outsize.load_exported(tmp_path / "out").predict(as_columns(TEST_ROWS), logits=True)
    assert np.array_equal(logits, expected)
    assert (tmp_path / "out" / "model.safetensors").stat().st_size < 12_000


def test_scores_are_probabilities_unless_logits_are_asked_for(model):
    rows = as_columns(TEST_ROWS)
    scores, logits = model.predict(rows), model.predict(rows, logits=True)
    assert scores.dtype == np.float64
    assert logits.dtype == np.float32
    assert scores == pytest.approx(1 / (1 + np.exp(-logits.astype(float))), abs=1e-15)


def test_another_batch_size_changes_logits_by_rounding_only(model):
    rows = as_columns(TEST_ROWS)
    logits = model.predict(rows, logits=True)
    model.predictor.batch_size = 7
    assert model.predict(rows, logits=True) == pytest.approx(logits, abs=1e-6)


def frames(rows):
    """The same rows in all forms, with values of the types that readers give them."""
    columns = as_columns(rows, INPUTS)
    yield "dict", columns
    yield "list of dicts", [{name: columns[name][i] for name in INPUTS} for i in range(len(rows))]
    yield "extra columns", {**columns, "label": ["?"] * len(rows), "note": rows}
    table = pa.table(columns)
    yield "table", table
    yield "chunked table", pa.concat_tables([table.slice(0, 9), table.slice(9)])
    yield "batch", table.to_batches()[0]
    coded = table.column("city").combine_chunks().dictionary_encode()
    yield "coded", table.set_column(table.column_names.index("city"), "city", coded)
    typed = {
        "age": [None if v is None else float(v) for v in columns["age"]],
        "price": np.array([float(v) for v in columns["price"]]),
        "city": np.array(columns["city"], dtype=object),
        "zip": torch.tensor([int(float(v)) for v in columns["zip"]]),
        "paid": [v == "True" for v in columns["paid"]],
        "tags": [v.split("|") if v else [] for v in columns["tags"]],
    }
    yield "typed", typed
    yield "floats", {**typed, "zip": [float(v) for v in columns["zip"]], "age": typed["age"]}
    yield "mixed", {**columns, "age": [v if i % 2 else typed["age"][i]
                                       for i, v in enumerate(columns["age"])]}  # fmt: skip


@pytest.mark.parametrize("form", [name for name, _ in frames(TEST_ROWS)])
def test_rows_of_every_form_have_the_same_scores(model, form):
    rows = dict(frames(TEST_ROWS))[form]
    expected = model.predict(as_columns(TEST_ROWS))
    assert np.array_equal(model.predict(rows), expected)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_of_other_libraries_are_read(model, library):
    frame = pytest.importorskip(library).DataFrame(dict(frames(TEST_ROWS))["floats"])
    assert np.array_equal(model.predict(frame), model.predict(as_columns(TEST_ROWS)))


class Frame:
    """Offers the Arrow interface, as polars and others do."""

    def __init__(self, table):
        self._table = table

    def __len__(self):
        return self._table.num_rows

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def test_anything_with_the_arrow_interface_is_read(model):
    columns = as_columns(TEST_ROWS, INPUTS)
    assert np.array_equal(model.predict(Frame(pa.table(columns))), model.predict(columns))


def test_values_not_seen_in_training_go_where_training_sent_them(model):
    known = as_columns(TEST_ROWS[:1], INPUTS)
    scores = {
        name: model.predict({**known, "city": [value]})[0]
        for name, value in {"new": "Atlantis", "other": "El Dorado", "none": None}.items()
    }
    assert scores["new"] == scores["other"] == scores["none"]
    assert scores["new"] != model.predict({**known, "city": ["city 3"]})[0]
    hashed = [model.predict({**known, "tags": [value]})[0] for value in ("new", "newer", "t1")]
    assert len(set(hashed)) == 3  # a hash tells them apart


def test_no_rows_have_no_scores(model):
    for rows in ({name: [] for name in INPUTS}, []):
        assert model.predict(rows).shape == (0,)


def test_bad_rows_are_named_with_their_column(model):
    rows = as_columns(TEST_ROWS, INPUTS)
    rows["age"][3], rows["age"][140] = "old", "older"
    with pytest.raises(DataError) as caught:
        model.predict(rows)
    message = str(caught.value)
    assert "rows 3, 140 (counted from 0) cannot be scored" in message
    assert "row 3: 'old' is a numeric value in 'age' that is not a number" in message
    assert "\n" not in message


def test_bad_rows_may_be_skipped(model):
    rows = as_columns(TEST_ROWS, INPUTS)
    expected = model.predict(rows)
    rows["age"][3] = "old"
    rows["price"][70] = 1e300
    scores = model.predict(rows, skip_bad=True)
    assert np.flatnonzero(np.isnan(scores)).tolist() == [3, 70]
    good = ~np.isnan(scores)
    assert scores[good] == pytest.approx(expected[good], abs=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("city"), "the rows have no column 'city'; they have: age, price"),
        (lambda r: r.update(city=["a"]), "differ in length: 'city' has 1 rows and"),
        (lambda r: r.update(city="city 3"), "'city' must be a list or an array"),
        (lambda r: r.update(age=[{"a": 1}] * len(r["city"])), "'age' holds struct"),
        (lambda r: r.update(city=[["a"], *r["city"][1:]]), "'city' mixes values"),
    ],
)
def test_rows_that_cannot_be_read_are_refused_in_one_line(model, change, message):
    rows = as_columns(TEST_ROWS, INPUTS)
    change(rows)
    with pytest.raises(DataError) as caught:
        model.predict(rows)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rows", [None, 3, "rows", [1, 2]])
def test_what_is_no_rows_is_refused(model, rows):
    with pytest.raises(DataError, match="rows must be a dict of lists"):
        model.predict(rows)


def test_a_column_without_any_known_value_is_a_warning(model):
    rows = as_columns(TEST_ROWS, INPUTS)
    rows["city"] = [value.upper() for value in rows["city"]]
    with pytest.warns(UserWarning, match="no value of column 'city' occurs in the training data"):
        model.predict(rows)


def test_the_module_stays_in_its_mode(model):
    model.train()
    model.predict(as_columns(TEST_ROWS))
    assert model.training


def test_a_model_without_an_encoding_says_so(tmp_path):
    spec = outsize.TableSpec("ad", 5, 4)
    embeddings = outsize.EmbeddingCollection(
        [outsize.FeatureSpec("ad")], outsize.LocalStore([spec])
    )
    with pytest.raises(ConfigError, match="load_exported"):
        outsize.models.DCN(0, embeddings).predict({"ad": [1]})


@pytest.mark.parametrize("damage", ["missing", "shorter", "flipped"])
def test_damaged_vocabularies_are_refused(exported, damage):
    path = exported / "vocabularies.safetensors"
    content = path.read_bytes()
    path.unlink()
    if damage == "shorter":
        path.write_bytes(content[:-1])
    elif damage == "flipped":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ExportError, match=r"vocabularies\.safetensors"):
        outsize.load_exported(exported)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e.pop("recipe"), "recipe is missing"),
        (lambda e: e["recipe"].update(categorical=["town"]), "town"),
        (lambda e: e["recipe"].update(dense=["age"]), "used twice"),
        (lambda e: e["num_ids"].update(city=7), "as many as its vocabulary has"),
        (lambda e: e["moments"].update(age=[1]), r"moments\.age is a list"),
    ],
)
def test_an_encoding_of_another_shape_is_refused_in_words(exported, change, message):
    config = json.loads((exported / "config.json").read_text())
    change(config["encoding"])
    (exported / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match=message):
        outsize.load_exported(exported).predict(as_columns(TEST_ROWS))


def test_the_card_says_what_the_model_reads_and_weighs(trained):
    result, _, folder = trained("compressed")
    card = json.loads((folder / "card.json").read_text())
    assert [(f["column"], f["type"]) for f in card["features"]] == [
        ("price", "number"), ("age", "number"), ("city", "value"), ("zip", "value"),
        ("paid", "value"), ("tags", "list of values"),
    ]  # fmt: skip
    assert card["features"][1]["transform"] == "standardized"
    assert card["features"][-1]["ids"] == "hash"
    assert card["data"]["data_files"] == "log.csv"
    assert card["data"]["train_examples"] == 600
    for name, size in card["file_bytes"].items():
        assert (folder / name).stat().st_size == size
    memory = card["memory_bytes"]
    tables = memory["table_parameters"] + memory["table_index_maps"]
    assert tables == result.memory.total_bytes
    assert math.isclose(card["metrics"][0]["loss"], result.best["loss"])
    assert f"Metrics of step {result.best['step']}" in (folder / "README.md").read_text()
