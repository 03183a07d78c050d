import hashlib
import json
import math
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import outsize
from outsize.errors import CheckpointError, ConfigError, ExportError, WriteError
from outsize.export import write_exported
from outsize.metrics import ClickMetrics
from outsize.models import CLICK_MODELS
from outsize.training import export_run, load_config

SMALL = """
seed = 4
[data]
num_train = 600
num_validation = 200
num_test = 200
largest_vocabulary = 100
num_categorical = 3
num_dense = 2
[model]
bottom = [8]
top = [8]
[embeddings]
dim = 4
[train]
batch_size = 256
"""
SIZES = {"user": 12, "item": 9}
SPECS = [outsize.TableSpec(name, size, 4) for name, size in SIZES.items()]


def train(folder, *settings):
    (folder / "run.toml").write_text(SMALL)
    config = load_config(folder / "run.toml", settings)
    return outsize.train(config, folder / "run", quiet=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run folder, its result and its exported model; tests only read them."""
    folder = tmp_path_factory.mktemp("trained")
    result = train(folder)
    export_run(folder / "run", folder / "exported")
    return folder, result


@pytest.fixture
def exported(trained, tmp_path):
    """A copy of the exported folder, to be damaged."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in (trained[0] / "exported").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def held_out(result):
    batch = load_config(result.out / "config.toml").data.build().examples("test", 0, 50)
    return batch.dense, batch.ids


def logits(model, batch):
    with torch.no_grad():
        return model.eval()(*batch)


@pytest.mark.parametrize("rows", ["store", "tables"])
@pytest.mark.parametrize("kind", CLICK_MODELS)
def test_every_model_is_the_same_after_export_bit_for_bit(kind, rows, tmp_path):
    settings = [f"model={{kind='{kind}'}}", f"embeddings={{kind='{rows}', dim=4}}"]
    if kind == "gmf":
        settings += ["data.num_dense=0", "data.num_categorical=2"]
    result = train(tmp_path, *settings)
    export_run(result.out, tmp_path / "exported")
    loaded = outsize.load_exported(tmp_path / "exported")
    batch = held_out(result)
    assert torch.equal(logits(loaded, batch), logits(result.model, batch))


@pytest.mark.parametrize("method", [name for name in outsize.TABLES if name != "full"])
def test_compressed_tables_are_exported_in_their_compressed_form(method, tmp_path):
    settings = ["embeddings.kind=tables", f"embeddings.method={method}",
                "embeddings.max_params=160", "embeddings.dim=4"]  # fmt: skip
    result = train(tmp_path, *settings)
    assert result.memory.num_parameters < 4 * (10 + 32 + 100)
    summary = export_run(result.out, tmp_path / "exported")
    loaded = outsize.load_exported(tmp_path / "exported")
    assert type(loaded.embeddings.tables["c3"]) is outsize.TABLES[method]
    batch = held_out(result)
    assert torch.equal(logits(loaded, batch), logits(result.model, batch))
    card = json.loads((tmp_path / "exported" / "card.json").read_text())
    tensors = load_file(tmp_path / "exported" / "model.safetensors").values()
    held = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert held == sum(card["memory_bytes"].values())
    dense = sum(t.numel() for n, t in result.model.named_parameters() if "embeddings" not in n)
    assert held == result.memory.total_bytes + 4 * dense
    assert summary["num_parameters"] == result.memory.num_parameters + dense


def test_quantized_tables_are_exported_with_their_codes_and_pointers(tmp_path):
    torch.manual_seed(3)
    embedding = torch.nn.Embedding(50, 4, padding_idx=2)
    quantized = outsize.quantize(embedding, columns=2, codes=8)
    spec = outsize.TableSpec("item", 9, 4)
    tables = {"user": quantized, "item": outsize.quantize(outsize.FullTable(spec), 2, 4)}
    features = [outsize.FeatureSpec(name) for name in tables]
    config = CLICK_MODELS["dcn"]()
    model = config.build(0, outsize.EmbeddingCollection(features, tables), seed=1)
    write_exported(tmp_path / "exported", model, config)
    loaded = outsize.load_exported(tmp_path / "exported")
    batch = (torch.empty(3, 0), {"user": torch.tensor([2, 7, 49]), "item": torch.tensor([0, 5, 8])})
    assert torch.equal(logits(loaded, batch), logits(model, batch))
    assert isinstance(loaded.embeddings.tables["user"], outsize.QuantizedTable)
    assert loaded.embeddings.tables["user"].padding_id == 2
    assert torch.equal(loaded.embeddings.tables["user"].pointers, quantized.pointers)


class OwnTable(outsize.FullTable):
    """A table of one's own, which says nothing of its settings."""

    def settings(self):
        return None


def test_a_table_without_settings_is_exported_as_full_rows(tmp_path):
    tables = {spec.name: OwnTable(spec, seed=3) for spec in SPECS}
    features = [outsize.FeatureSpec(name) for name in tables]
    config = CLICK_MODELS["dcn"]()
    model = config.build(0, outsize.EmbeddingCollection(features, tables), seed=1)
    write_exported(tmp_path / "exported", model, config)
    loaded = outsize.load_exported(tmp_path / "exported")
    assert type(loaded.embeddings.tables["user"]) is outsize.FullTable
    batch = (torch.empty(2, 0), {"user": torch.tensor([0, 11]), "item": torch.tensor([8, 2])})
    assert torch.equal(logits(loaded, batch), logits(model, batch))


def test_the_weights_of_a_larger_model_take_its_bytes_and_one_percent(tmp_path):
    specs = [outsize.TableSpec(f"c{i}", 20_000, 16) for i in range(8)]
    tables = outsize.build_tables("cce", specs, max_bytes=100_000)
    features = [outsize.FeatureSpec(spec.name) for spec in specs]
    config = CLICK_MODELS["dcn"]()
    embeddings = outsize.EmbeddingCollection(features, tables)
    model = config.build(0, embeddings, seed=1)
    summary = write_exported(tmp_path / "exported", model, config)
    dense = sum(p.numel() for n, p in model.named_parameters() if "embeddings" not in n)
    assert summary["bytes"] <= 1.01 * (embeddings.memory_use().total_bytes + 4 * dense)


def test_a_model_of_the_first_format_loads(exported, trained):
    path = exported / "config.json"
    config = json.loads(path.read_text())
    config["format"] = 1
    for name in ("task", "encoding", "batch_size"):
        del config[name]
    for table in config["tables"]:
        del table["settings"]
    path.write_text(json.dumps(config))
    for name in ("card.json", "README.md"):
        (exported / name).unlink()
    batch = held_out(trained[1])
    loaded = outsize.load_exported(exported)
    assert torch.equal(logits(loaded, batch), logits(trained[1].model, batch))
    assert "does not know how raw values become ids" in refusal(ConfigError, loaded.predict, {})


def test_the_loaded_module_is_plain_and_holds_no_trace_of_training(trained):
    folder, result = trained
    loaded = outsize.load_exported(folder / "exported")
    assert not loaded.training
    assert loaded.embeddings.store is None
    assert all(isinstance(t, outsize.FullTable) for t in loaded.embeddings.tables.values())
    own = {"interaction.pairs", "interaction.mirrored"}
    assert dict(loaded.named_buffers()).keys() == own  # constants of DLRM
    num_rows = sum(load_config(result.out / "config.toml").data.sizes())
    dense = sum(parameter.numel() for parameter in result.model.parameters())
    assert sum(parameter.numel() for parameter in loaded.parameters()) == dense + num_rows * 4


def test_the_loaded_module_can_be_trained_on(trained):
    folder, result = trained
    model = outsize.load_exported(folder / "exported").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = held_out(result)
    first = model(*batch).square().mean()
    first.backward()
    optimizer.step()
    assert model(*batch).square().mean() < first


def test_shared_tables_bags_padding_and_pooling_survive(tmp_path):
    features = [
        outsize.FeatureSpec("seen", "item", pooling="mean", padding_id=-1),
        outsize.FeatureSpec("item"),
        outsize.FeatureSpec("user", pooling="max"),
    ]
    unread = outsize.TableSpec("unread", 5, 4)
    embeddings = outsize.EmbeddingCollection(features, outsize.LocalStore([*SPECS, unread]))
    config = CLICK_MODELS["dcnv2"]()
    model = config.build(0, embeddings, seed=1)
    summary = write_exported(tmp_path / "exported", model, config)
    ids = {
        "seen": torch.tensor([[3, 1, -1], [-1, -1, -1]]),
        "item": torch.tensor([8, 2]),
        "user": (torch.tensor([0, 11, 4]), torch.tensor([0, 1])),
    }
    loaded = outsize.load_exported(tmp_path / "exported")
    assert set(loaded.embeddings.tables) == {"item", "user"}
    assert loaded.embeddings.features == tuple(features)
    batch = (torch.empty(2, 0), ids)
    assert torch.equal(logits(loaded, batch), logits(model, batch))
    assert summary["num_parameters"] == sum(p.numel() for p in loaded.parameters())


@pytest.mark.parametrize("rows", ["store", "tables"])
def test_rows_of_half_precision_give_the_same_logits(rows, tmp_path):
    specs = [outsize.TableSpec(n, s, 4, dtype=torch.bfloat16) for n, s in SIZES.items()]
    features = [outsize.FeatureSpec(name) for name in SIZES]
    tables = {spec.name: outsize.FullTable(spec) for spec in specs}
    embeddings = outsize.EmbeddingCollection(
        features, outsize.LocalStore(specs) if rows == "store" else tables
    )
    config = CLICK_MODELS["dcn"]()
    model = config.build(0, embeddings, seed=1)
    write_exported(tmp_path / "exported", model, config)
    ids = {name: torch.tensor([[1, 2, 3], [0, 5, 8]]) for name in SIZES}
    batch = (torch.empty(2, 0), ids)
    loaded = outsize.load_exported(tmp_path / "exported")
    assert torch.equal(logits(loaded, batch), logits(model, batch))


def test_the_configuration_says_what_was_trained_and_how_well(trained):
    folder, result = trained
    config = json.loads((folder / "exported" / "config.json").read_text())
    assert config["model"] == {"kind": "dlrm", "bottom": [8], "top": [8]}
    assert config["outsize"] == outsize.__version__
    assert config["num_dense"] == 2
    assert [feature["name"] for feature in config["features"]] == ["c1", "c2", "c3"]
    assert [(t["name"], t["num_rows"], t["dim"]) for t in config["tables"]] == [
        ("c1", 10, 4), ("c2", 32, 4), ("c3", 100, 4),
    ]  # fmt: skip
    measured = config["training"]["metrics"]
    assert {"step": config["training"]["step"], **measured["validation"]} == result.best
    assert measured["test"] == result.test


def test_the_weights_can_be_read_by_safetensors_alone(trained):
    tensors = load_file(trained[0] / "exported" / "model.safetensors")
    assert set(tensors) == {
        *(f"embeddings.tables.c{i}.weight" for i in (1, 2, 3)),
        *(f"{part}.{i}.{kind}" for part in ("bottom", "top") for i in (0, 2)
          for kind in ("weight", "bias")),
    }  # fmt: skip
    store = trained[1].model.embeddings.store
    assert torch.equal(tensors["embeddings.tables.c2.weight"], store.read(torch.arange(32), "c2"))


def test_loading_needs_neither_training_nor_data_nor_stores(trained):
    code = f"""
import sys, torch, outsize
model = outsize.load_exported({str(trained[0] / "exported")!r})
model(torch.zeros(1, 2), {{name: torch.tensor([0]) for name in ("c1", "c2", "c3")}})
unwanted = ("outsize.training", "outsize.data", "outsize.stores", "outsize.optimizers")
print([name for name in sys.modules if name.startswith(unwanted)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_where_no_best_was_kept_the_newest_is_exported_with_a_note(tmp_path):
    result = train(tmp_path, "checkpoint.every=1", "checkpoint.keep=3")
    (*_, before_last, last) = sorted((result.out / "checkpoint").iterdir())
    assert export_run(result.out, tmp_path / "last")["step"] == 3
    last.rename(result.out / "checkpoint" / f"{last.name}.partial")
    newest = export_run(result.out, tmp_path / "before")
    assert newest["step"] == 2
    assert newest["metrics"] == {}
    assert "nothing was validated yet: these are the weights of the newest" in newest["note"]
    assert before_last.exists()
    assert last.with_name(f"{last.name}.partial").exists()  # a run may be writing it


PAST_ITS_BEST = ("train.epochs=4", "train.early_stop=false", "optimizer.learning_rate=0.3",
                 "embeddings.optimizer.learning_rate=2.0", "checkpoint.keep=1")  # fmt: skip


@pytest.fixture(scope="module")
def faded(tmp_path_factory):
    """A run that went on past its best; tests only read it."""
    result = train(tmp_path_factory.mktemp("faded"), *PAST_ITS_BEST)
    assert result.best["step"] < result.steps
    return result


def auc_of(folder, result):
    data = load_config(result.out / "config.toml").data.build()
    batch = data.examples("test", 0, data.num_examples("test"))
    metrics = ClickMetrics()
    metrics.add(logits(outsize.load_exported(folder), (batch.dense, batch.ids)), batch.labels)
    return metrics.result()["auc"]


def test_the_weights_of_the_reported_metrics_are_exported(faded, tmp_path):
    summary = export_run(faded.out, tmp_path / "best")
    assert summary["is_best"]
    assert summary["note"] == ""
    assert {"step": summary["step"], **summary["metrics"]["validation"]} == faded.best
    assert summary["metrics"]["test"] == faded.test
    assert auc_of(tmp_path / "best", faded) == pytest.approx(faded.test["auc"], abs=1e-12)


def test_another_step_is_exported_with_no_metrics_but_its_own(faded, tmp_path):
    summary = export_run(faded.out, tmp_path / "last", step=faded.steps)
    assert not summary["is_best"]
    assert summary["step"] == faded.steps
    assert summary["metrics"].keys() == {"validation"}  # the test is measured at a best step
    assert summary["metrics"]["validation"]["auc"] != faded.best["auc"]
    assert auc_of(tmp_path / "last", faded) != pytest.approx(faded.test["auc"], abs=1e-6)


def test_a_step_that_was_not_kept_is_refused(faded, tmp_path):
    message = refusal(ConfigError, export_run, faded.out, tmp_path / "out", 2)
    assert f"no checkpoint of step 2: it keeps those of {faded.best['step']}, 12" in message


def test_a_run_whose_best_is_gone_says_so(faded, tmp_path):
    shutil.copytree(faded.out, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint" / f"step-{faded.best['step']:010d}")
    summary = export_run(tmp_path / "run", tmp_path / "out")
    assert summary["step"] == faded.steps
    assert f"(step {faded.best['step']}) was kept" in summary["note"]
    assert "test" not in summary["metrics"]


def refusal(error, function, *arguments):
    with pytest.raises(error) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(trained, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    message = refusal(ConfigError, export_run, trained[0] / "run", tmp_path)
    assert f"{tmp_path} is not empty" in message
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_model_of_ones_own_does_not_overwrite_anything_either(tmp_path):
    features = [outsize.FeatureSpec(name) for name in SIZES]
    embeddings = outsize.EmbeddingCollection(features, outsize.LocalStore(SPECS))
    config = CLICK_MODELS["gmf"]()
    model = config.build(0, embeddings, seed=0)
    (tmp_path / "thesis.tex").write_text("precious")
    assert "is not empty" in refusal(ConfigError, write_exported, tmp_path, model, config)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_place_of_the_folder_is_refused(trained, tmp_path):
    (tmp_path / "file").write_text("precious")
    assert "is a file" in refusal(ConfigError, export_run, trained[0] / "run", tmp_path / "file")
    message = refusal(ExportError, export_run, trained[0] / "run", tmp_path / "file" / "deeper")
    assert "could not write" in message


def test_an_empty_folder_is_used(trained, tmp_path):
    export_run(trained[0] / "run", tmp_path)
    names = {"model.safetensors", "config.json", "card.json", "README.md"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_the_current_folder_is_used_if_it_is_empty(trained, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    export_run(trained[0] / "run", ".")
    assert outsize.load_exported(tmp_path / "here").num_dense == 2
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_failed_export_leaves_nothing_behind(trained, tmp_path, monkeypatch):
    def full_disk(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("outsize.export.write.write_json", full_disk)
    message = refusal(ExportError, export_run, trained[0] / "run", tmp_path / "exported")
    assert "the disk is full" in message
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_run_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        message = refusal(ConfigError, export_run, folder, tmp_path / "out")
        assert f"{folder} holds no run" in message


def test_a_run_without_a_checkpoint_is_refused(trained, tmp_path):
    text = (trained[0] / "run" / "config.toml").read_text()
    (tmp_path / "config.toml").write_text(text)
    message = refusal(CheckpointError, export_run, tmp_path, tmp_path / "out")
    assert "holds no checkpoint yet" in message


def test_a_damaged_checkpoint_is_refused(tmp_path):
    result = train(tmp_path)
    (state,) = result.out.glob("checkpoint/*/state.safetensors")
    state.write_bytes(state.read_bytes()[:-1])
    message = refusal(CheckpointError, export_run, result.out, tmp_path / "out")
    assert "damaged" in message
    assert not (tmp_path / "out").exists()


def test_a_run_file_changed_after_the_run_is_refused(tmp_path):
    result = train(tmp_path)
    path = result.out / "config.toml"
    path.write_text(path.read_text().replace("dim = 4", "dim = 5"))
    assert "does not fit" in refusal(CheckpointError, export_run, result.out, tmp_path / "out")


def test_a_folder_without_an_exported_model_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        assert "outsize export RUN DIR" in refusal(ExportError, outsize.load_exported, folder)


@pytest.mark.parametrize("damage", ["missing", "shorter", "flipped"])
def test_damaged_weights_are_refused(exported, damage):
    path = exported / "model.safetensors"
    content = path.read_bytes()
    path.unlink()
    if damage == "shorter":
        path.write_bytes(content[:-1])
    elif damage == "flipped":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    message = refusal(ExportError, outsize.load_exported, exported)
    assert str(exported) in message
    assert "model.safetensors" in message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda c: c.clear(), "not one that an export writes"),
        (lambda c: c.update(format=99), "export format 99"),
        (lambda c: c.pop("features"), "features"),
        (lambda c: c["model"].update(kind="oracle"), "no model 'oracle'"),
        (lambda c: c["model"].update(bottom=[8, 0]), "bottom must hold widths"),
        (lambda c: c["model"].update(depth=3), "depth"),
        (lambda c: c["model"].update(bottom=[9]), "disagree about 'bottom.0.weight'"),
        (lambda c: c["model"].update(top=[]), "disagree about 'top.2.bias'"),
        (lambda c: c["tables"][0].update(num_rows=11), "disagree about 'embeddings.tables.c1"),
        (lambda c: c["tables"][0].update(method="magic"), "no table method 'magic'"),
    ],
)
def test_a_changed_configuration_is_refused(exported, change, expected):
    path = exported / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    assert expected in refusal(ExportError, outsize.load_exported, exported)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda c: c.update(format=True), "format is true"),
        (lambda c: c.update(num_dense="2"), "num_dense is"),
        (lambda c: c.update(num_dense=-2), "num_dense is -2"),
        (lambda c: c.update(features={}), "features is an object"),
        (lambda c: c["features"][0].pop("name"), "features[0].name is missing"),
        (lambda c: c["features"][0].update(pooling=3), "pooling"),
        (lambda c: c["features"][0].update(table="c9"), "c9"),
        (lambda c: c["model"].update(bottom="wide"), "bottom"),
        (lambda c: c["model"].update(bottom=[1 << 60]), "config.json"),
        (lambda c: c.update(model=["dlrm"]), "model is a list"),
        (lambda c: c["tables"][0].update(dtype="nn"), "no type 'nn'"),
        (lambda c: c["tables"][0].update(dtype="int8"), "c1"),
        (lambda c: c["tables"][0].update(dtype="float64"), "float32 where float64 belongs"),
        (lambda c: c["tables"][0].update(num_rows=1 << 50), "disagree about 'embeddings.tables.c1"),
        (lambda c: c["tables"].clear(), "c1"),
        (lambda c: c["files"].clear(), "model.safetensors is missing"),
        (lambda c: c["files"].update({"../thesis": c["files"]["model.safetensors"]}), "outside"),
        (lambda c: c["tables"][0].update(settings={"rank": 3}), "rank"),
        (lambda c: c["tables"][0].update(settings=[]), "settings is a list"),
        (lambda c: c["tables"][0].update(method="cce"), "num_buckets"),
        (lambda c: c.update(batch_size=0), "batch_size is 0"),
        (lambda c: c.update(encoding=3), "encoding is 3"),
        (lambda c: c["files"].update({"model.safetensors": {"bytes": "3"}}), "bytes is"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_a_configuration_of_another_shape_is_refused_in_words(exported, change, expected):
    path = exported / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    assert expected in refusal(ExportError, outsize.load_exported, exported)


def rewrite(exported, change):
    """Change the weights of an export, with a configuration that vouches for them."""
    weights = exported / "model.safetensors"
    tensors = load_file(weights)
    change(tensors)
    save_file(tensors, weights)
    config = json.loads((exported / "config.json").read_text())
    content = weights.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    config["files"]["model.safetensors"] = {"bytes": len(content), "sha256": digest}
    (exported / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", ["top.0.weight", "embeddings.tables.c2.weight"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.bool, torch.int64])
def test_weights_of_another_type_are_refused_in_words(exported, name, dtype):
    rewrite(exported, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    message = refusal(ExportError, outsize.load_exported, exported)
    assert f"{name!r} is {str(dtype)[6:]} where float32 belongs" in message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dense_weights_of_half_precision_are_widened_and_rows_are_not(exported, dtype):
    rewrite(
        exported, lambda tensors: tensors.update({"top.0.bias": tensors["top.0.bias"].to(dtype)})
    )
    found = outsize.load_exported(exported).state_dict()["top.0.bias"]
    saved = load_file(exported / "model.safetensors")["top.0.bias"]
    assert torch.equal(found, saved.float())
    name = "embeddings.tables.c2.weight"
    rewrite(exported, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    assert name in refusal(ExportError, outsize.load_exported, exported)


@pytest.mark.parametrize("name", ["top.0.weight", "embeddings.tables.c2.weight"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers_are_refused_when_loaded(exported, name, value):
    rewrite(exported, lambda tensors: tensors[name].view(-1)[-1:].fill_(value))
    message = refusal(ExportError, outsize.load_exported, exported)
    assert f"{name!r} holds NaN or infinite numbers" in message


@pytest.mark.parametrize("where", ["dense", "rows"])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_weights_that_are_no_numbers_are_not_written(tmp_path, where, value):
    features = [outsize.FeatureSpec(name) for name in SIZES]
    embeddings = outsize.EmbeddingCollection(features, outsize.LocalStore(SPECS))
    config = CLICK_MODELS["dcn"]()
    model = config.build(0, embeddings, seed=0)
    (part,) = [part for part in embeddings.store.parts() if part.table == "item"]
    weight = next(model.parameters()) if where == "dense" else part.tensors["rows"]
    with torch.no_grad():
        weight.view(-1)[-1:].fill_(value)
    message = refusal(ExportError, write_exported, tmp_path / "out", model, config)
    assert "holds NaN or infinite numbers" in message
    assert ("embeddings.tables.item.weight" in message) == (where == "rows")
    assert not (tmp_path / "out").exists()


def test_an_export_removes_no_folder_that_it_did_not_make(trained, tmp_path):
    strange = tmp_path / ".out.exporting"
    strange.mkdir()
    (strange / "thesis.tex").write_text("precious")
    message = refusal(WriteError, export_run, trained[0] / "run", tmp_path / "out")
    assert f"{strange} is in the way" in message
    assert (strange / "thesis.tex").read_text() == "precious"
    (strange / "thesis.tex").rename(strange / ".outsize-partial")  # as a crash leaves it
    export_run(trained[0] / "run", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "3", "[" * 200_000])
def test_a_configuration_that_is_none_is_refused(exported, text):
    (exported / "config.json").write_text(text)
    assert "config.json" in refusal(ExportError, outsize.load_exported, exported)
