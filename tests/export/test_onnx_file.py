"""Exported models in onnxruntime."""

import contextlib
import io
import json

import jaxtyping
import numpy as np
import pytest
import torch
from raw_logs import TEST_ROWS, as_columns
from test_tracing import ROWS, make_model, make_table

import outsize
from outsize.cli import main
from outsize.errors import ConfigError
from outsize.export import onnx_file, write_onnx

pytest.importorskip("onnxscript")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """The command's export of a model with numbers, ids and bags over CCE tables; only read."""
    folder = tmp_path_factory.mktemp("onnx") / "model"
    jaxtyping.config.update("jaxtyping_disable", True)  # as `unchecked_shapes` does
    output = io.StringIO()
    with pytest.raises(SystemExit) as ended, contextlib.redirect_stdout(output):
        main(["export", str(trained("compressed")[0].out), str(folder), "--onnx", "--json"])
    jaxtyping.config.update("jaxtyping_disable", False)
    assert ended.value.code == 0
    return folder, folder / "model.onnx", json.loads(output.getvalue())["onnx"]


def test_logits_of_raw_rows_are_those_of_the_model(exported):
    folder, path, summary = exported
    run = session(path)
    assert [given.name for given in run.get_inputs()] == summary["inputs"]
    assert summary["inputs"] == ["dense", "city", "zip", "paid", "tags", "tags.offsets"]
    assert summary["opset"] == 18
    model = outsize.load_exported(folder)
    seen = []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs))
    for rows in (TEST_ROWS[:1], TEST_ROWS[:50]):
        expected = model.predict(as_columns(rows), logits=True)
        dense, ids = seen[-1]
        inputs = {"dense": dense, **ids, "tags": ids["tags"].values}
        inputs["tags.offsets"] = ids["tags"].offsets
        (found,) = run.run(["logits"], {name: value.numpy() for name, value in inputs.items()})
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_the_batch_size_is_free_and_named(exported):
    shapes = {given.name: given.shape for given in session(exported[1]).get_inputs()}
    assert shapes["dense"] == ["batch", 2]
    assert shapes["city"] == shapes["tags.offsets"] == ["batch"]
    assert shapes["tags"] == ["num_tags"]


def test_tables_of_several_methods_run_without_dense_features(tmp_path):
    methods = ["full", "robe", "qr", "hash", "quantized", "int8"]
    _, model = make_model(methods, num_dense=0)
    summary = write_onnx(model, tmp_path / "model.onnx")
    assert summary["inputs"] == methods
    kinds = onnx.TensorProto
    held = [
        (t.data_type, tuple(t.dims)) for t in onnx.load(tmp_path / "model.onnx").graph.initializer
    ]
    assert (kinds.INT8, (ROWS["int8"], 8)) in held
    assert (kinds.UINT8, (ROWS["quantized"], 2)) in held
    assert (kinds.FLOAT, (ROWS["int8"], 8)) not in held
    draw = torch.Generator().manual_seed(0)
    for size in (1, 200):
        ids = {name: torch.randint(40, (size,), generator=draw) for name in summary["inputs"]}
        given = {name: value.numpy() for name, value in ids.items()}
        (found,) = session(tmp_path / "model.onnx").run(["logits"], given)
        with torch.no_grad():
            expected = model(torch.empty(size, 0), ids)
        np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dim", [16, 15])
@pytest.mark.parametrize("budget", [{"max_params": 4_000}, {"max_bytes": 20_000}])
def test_compressed_tables_stay_compressed(budget, dim, tmp_path):
    """Of 15 numbers, columns are not equally wide."""
    spec = outsize.TableSpec("user", 20_000, dim)
    tables = outsize.build_tables("cce", [spec], **budget)
    tables["user"].recluster(counts=torch.arange(20_000))
    config = outsize.models.CLICK_MODELS["logistic"]()
    embeddings = outsize.EmbeddingCollection([outsize.FeatureSpec("user")], tables)
    model = config.build(0, embeddings, seed=0).eval()
    summary = write_onnx(model, tmp_path / "model.onnx")
    ids = torch.arange(0, 20_000, 97)
    (found,) = session(tmp_path / "model.onnx").run(["logits"], {"user": ids.numpy()})
    with torch.no_grad():
        expected = model(torch.empty(ids.numel(), 0), {"user": ids})
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-5)
    assert b"outsize/" not in (tmp_path / "model.onnx").read_bytes()  # no paths of the code
    assert summary["bytes"] < embeddings.memory_use().total_bytes + 30_000 < 20_000 * 16


def test_a_file_that_exists_is_not_overwritten(exported):
    before = exported[1].read_bytes()
    with pytest.raises(ConfigError, match="exists: choose another file"):
        write_onnx(outsize.load_exported(exported[0]), exported[1])
    assert exported[1].read_bytes() == before


def test_names_that_inputs_would_share_are_refused(tmp_path):
    features = [outsize.FeatureSpec("dense", "full")]
    embeddings = outsize.EmbeddingCollection(features, {"full": make_table("full")})
    model = outsize.models.CLICK_MODELS["logistic"]().build(0, embeddings, seed=0)
    with pytest.raises(ConfigError, match="'dense' has the name of another input"):
        write_onnx(model, tmp_path / "model.onnx")


def test_a_missing_package_is_named_with_its_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(onnx_file, "_NEEDED", ("onnx", "no_such_package"))
    with pytest.raises(ConfigError, match=r"needs no_such_package: pip install 'outsize\[onnx\]'"):
        write_onnx(make_model(["full"])[1], tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
