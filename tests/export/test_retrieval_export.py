"""Two towers are exported with their items, and searched with raw values."""

import csv
import json
import random
import shutil

import numpy as np
import pytest
import torch

import outsize
from outsize.cli import main
from outsize.errors import ConfigError, DataError, ExportError
from outsize.training.config import RunConfig
from outsize.training.export_run import export_run
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import choose_checkpoint, load_weights
from outsize.training.strict_toml import decode, override
from outsize.training.tasks import TASKS

TREE = {
    "data": {
        "kind": "interactions", "query": "user", "item": "film", "query_features": ["age", "town"],
        "item_features": ["genres"], "numeric": ["age"], "multi_valued": ["genres"],
    },
    "model": {"kind": "two-tower", "dim": 8, "hidden": [8]},
    "negatives": {"kind": "in-batch"},
    "embeddings": {"dim": 4},
    "train": {"batch_size": 64, "epochs": 2},
}  # fmt: skip


def write_pairs(path):
    draw = random.Random(0)
    lines = ["user,film,age,town,genres"]
    for user in range(40):
        for film in draw.sample(range(30), 12):
            town = f"town {user % 5}" if user % 7 else ""
            genres = "|".join(f"g{(film * k) % 6}" for k in range(1, 1 + film % 4))
            lines.append(f"u{user},film {film},{20 + user},{town},{genres}")
    path.write_text("\n".join(lines))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run, the model of its best step, its data and its export; tests only read them."""
    folder = tmp_path_factory.mktemp("films")
    write_pairs(folder / "pairs.csv")
    settings = [f"data.path={json.dumps([str(folder / 'pairs.csv')])}"]
    config = decode(RunConfig, override(TREE, settings), "test")
    result = outsize.train(config, folder / "run", quiet=True)
    summary = export_run(result.out, folder / "exported")
    task = TASKS["retrieval"](config)
    run = RunFolder(result.out)
    load_weights(run, config, task.model, choose_checkpoint(run).folder)
    return result, task, folder / "exported", summary


@pytest.fixture
def model(trained):
    return outsize.load_exported(trained[2])


def test_the_best_items_of_raw_queries_are_those_of_the_run(trained, model):
    _, task, _, _ = trained
    task.model.eval()
    with torch.no_grad():
        rows = torch.arange(task.data.queries.num_rows)
        queries = task.model.encode_queries(task.data.queries.take(rows))
        items = task.model.encode_items(task.data.items.take(torch.arange(30)))
    names = task.data.items.names.to_pylist()
    raw = {"user": [], "age": [], "town": []}
    for name in task.data.queries.names.to_pylist():
        user = int(name[1:])
        raw["user"].append(name)
        raw["age"].append(20 + user)
        raw["town"].append(f"town {user % 5}" if user % 7 else None)
    found = model.search(raw, k=5)
    expected = (queries @ items.T).topk(5)
    assert found.items == [[names[i] for i in line] for line in expected.indices.tolist()]
    assert found.scores == pytest.approx(expected.values.numpy(), abs=1e-6)


def test_metrics_of_the_best_step_are_on_the_card(trained):
    result, _, folder, summary = trained
    card = json.loads((folder / "card.json").read_text())
    assert {"split": "test", "step": result.best["step"], **result.test} in card["metrics"]
    assert summary["is_best"]
    assert card["data"]["items"] == 30
    assert "ndcg@10" in (folder / "README.md").read_text()


def test_there_are_no_more_items_than_there_are(model):
    found = model.search({"user": ["u1"], "age": [30], "town": ["town 1"]}, k=50)
    assert len(found.items[0]) == len(set(found.items[0])) == 30
    assert found.scores.shape == (1, 50)
    assert np.isneginf(found.scores[0, 30:]).all()


def test_an_unknown_value_of_a_feature_is_as_a_missing_one(model):
    known = {"user": ["u1"], "age": [None], "town": [None]}
    assert (
        model.search({**known, "town": ["Atlantis"]}).scores.tolist()
        == model.search(known).scores.tolist()
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"user": ["u1", "u99"], "age": [1, 2], "town": ["", ""]}, "row 1: 'u99' is a value of"),
        ({"user": ["u1"], "age": ["old"], "town": [""]}, "row 0: 'old' is a numeric value in"),
        ({"user": ["u1"], "age": [3]}, "have no column 'town'"),
    ],
)  # fmt: skip
def test_queries_that_cannot_be_encoded_are_named(model, rows, message):
    with pytest.raises(DataError) as caught:
        model.search(rows)
    assert message in str(caught.value)


def test_a_model_without_items_says_so(trained):
    with pytest.raises(ConfigError, match="no items to search"):
        trained[1].model.search({})


@pytest.mark.parametrize("name", ["items.safetensors", "vocabularies.safetensors"])
def test_damaged_files_are_refused(trained, tmp_path, name):
    folder = shutil.copytree(trained[2], tmp_path / "copy")
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    with pytest.raises(ExportError, match=name):
        outsize.load_exported(folder)


def test_a_file_of_queries_has_the_items_of_each(trained, model, tmp_path, capfd):
    path, out = tmp_path / "users.csv", tmp_path / "items.csv"
    path.write_text("town,user,age\ntown 1,u1,21\ntown 2,u99,22\n,u7,27\n")
    with pytest.raises(SystemExit) as left:
        main(["predict", str(trained[2]), str(path), "--out", str(out), "--top", "3",
              "--max-bad-rows", "0.5"])  # fmt: skip
    assert left.value.code == 0
    assert "1 with a value of 'user' that the training data does not have" in capfd.readouterr().err
    lines = list(csv.DictReader(out.read_text().splitlines()))
    found = model.search({"user": ["u1", "u7"], "age": [21, 27], "town": ["town 1", None]}, k=3)
    assert [line["item"] for line in lines] == [*found.items[0], *found.items[1]]
    assert [(line["row"], line["rank"]) for line in lines] == [
        (row, str(rank)) for row in "02" for rank in (1, 2, 3)
    ]
    with pytest.raises(SystemExit) as left:
        main(["predict", str(trained[2]), str(path), "--out", str(out)])
    assert left.value.code == 2
    assert "row 3: 'u99'" in capfd.readouterr().err


def test_a_quantized_model_has_its_own_metrics_and_items(trained, tmp_path):
    result, task, plain, _ = trained
    summary = export_run(result.out, tmp_path / "small", quantize="int8")
    before = summary["quantization"]["metrics_before"]
    assert before["test"] == pytest.approx(result.test, rel=1e-6)
    assert summary["metrics"]["test"]["loss"] != before["test"]["loss"]
    assert summary["metrics"]["test"]["loss"] == pytest.approx(before["test"]["loss"], abs=0.01)
    model = outsize.load_exported(tmp_path / "small")
    with torch.no_grad():
        items = model.encode_items(task.data.items.take(torch.arange(30)))
    torch.testing.assert_close(model.searcher.vectors, items)
    with pytest.raises(ConfigError, match="export its run with --quantize"):
        export_run(plain, tmp_path / "other", quantize="int8")
