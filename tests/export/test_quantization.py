"""Exports with quantized tables: what they cost is measured on the weights that are written."""

import json
import shutil

import numpy as np
import pytest
import torch
from raw_logs import TEST_ROWS, as_columns, write_rows
from safetensors.torch import load_file
from test_predict import evaluated, metrics_of
from test_serving import ask, running

import outsize
from outsize.cli import main
from outsize.errors import ConfigError, ExportError
from outsize.export.quantization import Quantization, quantize_click_model
from outsize.files import write_tensors
from outsize.training import export_run
from outsize.training.evaluate import evaluate
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import load_click_model

HOW = {"int8": Quantization("int8"), "pq": Quantization("pq", columns=2, codes=8, min_rows=10)}


@pytest.fixture(scope="module")
def quantized(trained, tmp_path_factory):
    """Quantized exports of runs by kind and method, made when first asked for; only read."""
    folder, found = tmp_path_factory.mktemp("quantized"), {}

    def export(kind, method):
        if (kind, method) not in found:
            out = folder / f"{kind}-{method}"
            found[kind, method] = out, export_run(trained(kind)[0].out, out, quantize=HOW[method])
        return found[kind, method]

    return export


def card_of(folder):
    return json.loads((folder / "card.json").read_text())


@pytest.mark.parametrize("method", HOW)
@pytest.mark.parametrize("kind", ["store", "tables", "cached"])
def test_metrics_recomputed_from_raw_rows_are_those_of_the_card(trained, quantized, kind, method):
    result, config, plain = trained(kind)
    folder, summary = quantized(kind, method)
    logits = outsize.load_exported(folder).predict(as_columns(TEST_ROWS), logits=True)
    found = metrics_of(logits, TEST_ROWS)
    card = card_of(folder)
    (of_card,) = [metrics for metrics in card["metrics"] if metrics["split"] == "test"]
    assert {name: of_card[name] for name in found} == pytest.approx(found, rel=1e-12)
    assert of_card["step"] == result.best["step"]
    assert summary["metrics"]["test"] == pytest.approx(found, rel=1e-12)
    before = card["quantization"]["metrics_before"]
    assert before["test"] == pytest.approx(result.test, rel=1e-12)
    assert found["loss"] != result.test["loss"]
    assert found["loss"] == pytest.approx(result.test["loss"], abs=0.05)
    model, *_ = load_click_model(RunFolder(result.out), config)
    model, _ = quantize_click_model(model, config.model, HOW[method])
    assert np.array_equal(logits, evaluated(model, config))
    sizes = [(one / "model.safetensors").stat().st_size for one in (folder, plain)]
    assert sizes[0] < sizes[1]
    assert card["quantization"]["table_bytes_before"] > card["quantization"]["table_bytes"]
    memory = card["memory_bytes"]
    tables = memory["table_parameters"] + memory["table_index_maps"]
    assert card["quantization"]["table_bytes"] == tables


def test_int8_rows_are_a_byte_per_number_in_the_file_and_in_memory(quantized):
    folder, summary = quantized("store", "int8")
    state = load_file(folder / "model.safetensors")
    model = outsize.load_exported(folder)
    for table in summary["quantization"]["tables"]:
        rows = state[f"embeddings.tables.{table['name']}.rows"]
        assert rows.dtype == torch.int8
        assert table["bytes"] == rows.numel() + 4 * len(rows)
        assert 0 < table["relative_error"] < 1e-3
        held = model.embeddings.tables[table["name"]]
        assert type(held) is outsize.Int8Table
        assert held.memory_use().total_bytes == table["bytes"]


def test_an_older_version_refuses_8_bit_rows_by_the_format_and_reads_all_else(quantized, trained):
    formats = {
        folder: json.loads((folder / "config.json").read_text())["format"]
        for folder in (quantized("tables", "int8")[0], quantized("tables", "pq")[0],
                       trained("tables")[2])
    }  # fmt: skip
    assert list(formats.values()) == [3, 2, 2]


def test_what_would_not_be_smaller_is_unchanged_and_named(quantized):
    specs = [outsize.TableSpec("user", 2_000, 8), outsize.TableSpec("item", 30, 8)]
    tables = outsize.build_tables("cce", specs[:1], max_params=1_600)
    tables["item"] = outsize.FullTable(specs[1])
    config = outsize.models.CLICK_MODELS["dcn"]()
    features = [outsize.FeatureSpec(name) for name in tables]
    model = config.build(0, outsize.EmbeddingCollection(features, tables), seed=0)
    made, (compressed, full) = quantize_click_model(model, config, HOW["int8"])
    assert compressed.method == compressed.method_before == "cce"
    assert compressed.reason == "a cce table is compressed: int8 rows would not be smaller"
    assert compressed.bytes == compressed.bytes_before
    assert made.embeddings.tables["user"] is tables["user"]
    assert full.method == "int8"
    _, summary = quantized("tables", "pq")
    (small,) = [table for table in summary["quantization"]["tables"] if table["name"] == "paid"]
    assert small["reason"] == "fewer than 10 rows"
    assert small["method"] == "full"
    assert small["relative_error"] == 0


def test_a_row_of_one_number_is_no_smaller_as_an_integer_with_a_scale():
    spec = outsize.TableSpec("user", 50, 1)
    embeddings = outsize.EmbeddingCollection(
        [outsize.FeatureSpec("user")], {"user": outsize.FullTable(spec)}
    )
    config = outsize.models.CLICK_MODELS["logistic"]()
    model = config.build(0, embeddings, seed=0)
    quantized, (change,) = quantize_click_model(model, config, HOW["int8"])
    assert change.reason == "dim is small: int8 rows would not be smaller"
    assert quantized.embeddings.tables["user"] is embeddings.tables["user"]


def test_bytes_of_all_tables_are_within_a_budget(trained):
    result, config, _ = trained("tables")
    model, *_ = load_click_model(RunFolder(result.out), config)
    total = model.embeddings.memory_use().total_bytes
    how = Quantization("pq", max_bytes=total // 2, min_rows=10)
    _, changes = quantize_click_model(model, config.model, how)
    assert sum(change.bytes for change in changes) <= total // 2
    assert {change.method for change in changes if change.name != "paid"} == {"quantized"}
    _, changes = quantize_click_model(model, config.model, Quantization("pq", max_bytes=total))
    assert all(change.reason for change in changes)
    with pytest.raises(ConfigError, match="which stay as they are, have"):
        quantize_click_model(model, config.model, Quantization("pq", max_bytes=10))


@pytest.mark.parametrize("method", HOW)
def test_files_and_requests_are_scored_as_by_the_loaded_model(quantized, tmp_path, method):
    folder, summary = quantized("store", method)
    path = write_rows(tmp_path / "test.csv", TEST_ROWS)
    assert evaluate(folder, path, quiet=True)["metrics"] == pytest.approx(
        summary["metrics"]["test"], rel=1e-12
    )
    rows = as_columns(TEST_ROWS[:5])
    with running(folder) as port:
        status, answer = ask(port, "POST", "/predict", rows)
    assert status == 200
    assert answer["probabilities"] == outsize.load_exported(folder).predict(rows).tolist()


def test_an_export_is_quantized_without_data_and_says_what_was_not_measured(
    trained, quantized, tmp_path, capfd
):
    _, _, plain = trained("store")
    with pytest.raises(SystemExit) as ended:
        main(["export", str(plain), str(tmp_path / "out"), "--quantize", "int8"])
    assert ended.value.code == 0
    assert f"outsize evaluate {tmp_path / 'out'} FILE` measures it" in capfd.readouterr().err
    card, before = card_of(tmp_path / "out"), card_of(plain)
    assert card["metrics"] == []
    assert card["data"] == before["data"]
    floats = {m["split"]: m for m in before["metrics"]}
    assert card["quantization"]["metrics_before"]["test"]["auc"] == floats["test"]["auc"]
    rows = as_columns(TEST_ROWS)
    scores = [outsize.load_exported(one).predict(rows)
              for one in (tmp_path / "out", quantized("store", "int8")[0])]  # fmt: skip
    assert np.array_equal(*scores)
    for settings in ({}, {"quantize": "int8", "step": 3}):
        with pytest.raises(ConfigError, match="holds an export, not a run"):
            export_run(plain, tmp_path / "other", **settings)


def test_the_command_prints_bytes_and_metrics_before_and_after(trained, tmp_path, capfd):
    run = str(trained("tables")[0].out)
    with pytest.raises(SystemExit) as ended:
        main(["export", run, str(tmp_path / "a"), "--quantize", "pq", "--columns", "2",
              "--codes", "8", "--min-rows", "10"])  # fmt: skip
    assert ended.value.code == 0
    lines = [line.split() for line in capfd.readouterr().err.splitlines()]
    assert ["weights", "tables", "split", "loss", "auc"] in lines
    assert [line[0] for line in lines if "test" in line] == ["before", "pq"]
    assert ["paid:", "unchanged", "(fewer", "than", "10", "rows)"] in lines
    with pytest.raises(SystemExit):
        main(["export", run, str(tmp_path / "b"), "--quantize", "int8", "--json"])
    summary = json.loads(capfd.readouterr().out)
    assert summary["quantization"]["method"] == "int8"
    assert set(summary["metrics"]) == set(summary["quantization"]["metrics_before"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--quantize", "int4"], "no quantization 'int4'. Did you mean 'int8'?"),
        (["--quantize", "int8", "--codes", "4"], "codes is for product quantization"),
        (["--quantize", "pq", "--codes", "0"], "codes must be >= 1, but got 0"),
        (["--quantize", "pq", "--codes", "4", "--max-bytes", "9"], "give one of them"),
        (["--columns", "4"], "are settings of --quantize pq: add it"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(trained, tmp_path, words, message, capfd):
    with pytest.raises(SystemExit) as ended:
        main(["export", str(trained("tables")[0].out), str(tmp_path / "out"), *words])
    assert ended.value.code == 2
    assert message in " ".join(capfd.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_rows_of_another_shape_than_stated_are_refused(quantized, tmp_path):
    folder = shutil.copytree(quantized("store", "int8")[0], tmp_path / "copy")
    state = load_file(folder / "model.safetensors")
    state["embeddings.tables.city.rows"] = state["embeddings.tables.city.rows"][:-1].clone()
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text())
    config["files"]["model.safetensors"] = write_tensors(folder / "model.safetensors", state)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match=r"disagree about 'embeddings\.tables\.city\.rows'"):
        outsize.load_exported(folder)
