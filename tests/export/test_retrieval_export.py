"""Two towers are exported with their items, and searched with raw values."""

import csv
import json
import random
import shutil

import numpy as np
import pyarrow as pa
import pytest
import torch

import outsize
from outsize.cli import main
from outsize.data.encoding.text_keys import text_keys
from outsize.errors import ConfigError, DataError, ExportError
from outsize.export.file_reading import LabelledFile
from outsize.metrics import RankingMetrics, measure_run, read_run
from outsize.training.config import RunConfig
from outsize.training.evaluate import evaluate
from outsize.training.evaluate_pairs import evaluate_pairs
from outsize.training.export_run import export_run
from outsize.training.run_files import RunFile
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
    "negatives": {"kind": "in-batch", "learn_beta": True},
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


def pairs_file(task, path, *splits):
    """Raw rows of the pairs of splits, with the columns of the query tower."""
    users, films = (side.names.to_pylist() for side in (task.data.queries, task.data.items))
    lines = ["film,user,age,town"]
    for split in splits:
        for user, film in zip(*(part.tolist() for part in task.data._pairs[split]), strict=True):
            number = int(users[user][1:])
            town = f"town {number % 5}" if number % 7 else ""
            lines.append(f"{films[film]},{users[user]},{20 + number},{town}")
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_file_of_held_out_pairs_has_the_metrics_of_the_run(trained, tmp_path, split):
    result, task, folder, _ = trained
    file = pairs_file(task, tmp_path / "pairs.csv", split)
    known = ["train"] if split == "validation" else ["train", "validation"]
    seen = [pairs_file(task, tmp_path / f"{name}.csv", name) for name in known]
    expected = result.test if split == "test" else result.best
    wanted = {name: value for name, value in expected.items() if name != "step"}
    found = [evaluate(model, file, exclude=seen, quiet=True) for model in (result.out, folder)]
    if split == "test":
        found.append(evaluate(result.out, file, quiet=True))  # what its test leaves out
    for summary in found:
        assert summary["metrics"] == pytest.approx(wanted, rel=1e-5)
        assert summary["step"] == result.best["step"]
        assert summary["num_rows"] == task.data.num_pairs(split)
        assert summary["note"] == ""


def test_a_run_file_has_the_rankings_that_were_measured(trained, tmp_path, capfd):
    result, task, folder, _ = trained
    file = pairs_file(task, tmp_path / "pairs.csv", "test")
    runs = {model: tmp_path / f"{model.name}.run" for model in (result.out, folder)}
    measured = {}
    for model, path in runs.items():
        with pytest.raises(SystemExit):
            main(["evaluate", str(model), str(file), "--run-file", str(path), "--depth", "25"])
        assert f"rankings  →  {path}" in capfd.readouterr().err.replace("\n", "")
        measured[model] = evaluate(model, file, quiet=True)["metrics"]
    rows = [line.replace(" ", "%20").split(",")[:2] for line in file.read_text().splitlines()[1:]]
    for model, path in runs.items():
        rankings = dict(read_run(path))
        wanted = {}
        for item, query in rows:
            wanted.setdefault(query, {})[item] = 1
        assert rankings.keys() == wanted.keys()
        lengths = {len(ranking) for ranking in rankings.values()}
        assert lengths == {25} if model == folder else max(lengths) < 25  # the run leaves out pairs
        found = measure_run(rankings.items(), wanted, RankingMetrics())
        assert found == pytest.approx({name: measured[model][name] for name in found}, rel=1e-6)
    with pytest.raises(ConfigError, match="depth of a run file must be >= 1"):
        RunFile(tmp_path / "x", 0)


def test_pairs_of_cold_queries_and_in_other_orders_change_nothing(trained, tmp_path, monkeypatch):
    _, task, folder, _ = trained
    file = pairs_file(task, tmp_path / "pairs.csv", "test")
    expected = evaluate(folder, file, quiet=True)
    assert "--exclude" in expected["note"]
    header, *lines = file.read_text().splitlines()
    monkeypatch.setattr("outsize.data.encoding.sources.BLOCK_BYTES", 64)
    file.write_text("\n".join([header, *reversed(lines), *lines[:5]]))
    found = evaluate(folder, file, quiet=True)
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-5)
    model = outsize.load_exported(folder)
    model.searcher.cold = text_keys(pa.array(["u1"]))
    config = json.loads((folder / "config.json").read_text())
    without = evaluate_pairs(model, LabelledFile(file, quiet=True), config["pairs"])
    assert without["num_queries"] == found["metrics"]["num_queries"] - 1


def test_pairs_that_cannot_be_evaluated_are_refused_in_one_line(trained, tmp_path, capfd):
    result, task, folder, _ = trained
    file = tmp_path / "pairs.csv"
    file.write_text("film,user,age,town\nfilm 1,u1,21,\nfilm 99,u1,21,\n,u1,21,\nfilm 2,u99,1,\n")
    with pytest.raises(SystemExit) as left:
        main(["evaluate", str(folder), str(file)])
    assert left.value.code == 2
    message = " ".join(capfd.readouterr().err.split())
    assert "a value of 'film' that the training data does not have" in message
    assert "--max-bad-rows" in message
    summary = evaluate(folder, file, max_bad_rows=0.8, quiet=True)
    assert (summary["num_rows"], summary["num_bad"]) == (1, 3)
    train = pairs_file(task, tmp_path / "train.csv", "train")
    with pytest.raises(DataError, match="every pair is known already"):
        evaluate(result.out, train, quiet=True)


def test_excluded_items_are_not_found(model):
    rows = {"user": ["u1", "u2"], "age": [21, 22], "town": ["town 1", "town 2"]}
    plain = model.search(rows, k=30)
    exclude = [plain.items[0][:3], None]
    found = model.search(rows, k=5, exclude=exclude)
    assert found.items == [plain.items[0][3:8], plain.items[1][:5]]
    np.testing.assert_allclose(found.scores[0], plain.scores[0, 3:8], rtol=0, atol=1e-6)
    nothing = model.search(rows, k=2, exclude=plain.items)
    assert nothing.items == [[], []]
    assert np.isneginf(nothing.scores).all()


def test_ids_to_exclude_that_are_of_no_item_are_a_warning(model):
    rows = {"user": ["u1"], "age": [21], "town": ["town 1"]}
    with pytest.warns(UserWarning, match="2 of the ids to exclude are of no item .* '7'; they"):
        found = model.search(rows, k=3, exclude=[[7, "film x"]])
    assert found.items == model.search(rows, k=3).items


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        ([["film 1"]], "exclude has 1 lists, but there are more than 1 rows"),
        ([[], [], []], "exclude has 3 lists, but there are only 2 rows"),
        (["film 1", "film 2"], "a list of item ids for each row"),
        (5, "a list of item ids for each row"),
    ],
)
def test_lists_that_do_not_fit_the_rows_are_refused(model, exclude, message):
    rows = {"user": ["u1", "u2"], "age": [21, 22], "town": ["", ""]}
    with pytest.raises(DataError, match=message):
        model.search(rows, exclude=exclude)


def test_the_command_leaves_out_what_a_file_says_was_seen(trained, model, tmp_path, capfd):
    folder, path, seen = trained[2], tmp_path / "users.csv", tmp_path / "seen.csv"
    path.write_text("town,user,age\ntown 1,u1,21\n,u7,27\n")
    best = model.search({"user": ["u1", "u7"], "age": [21, 27], "town": ["town 1", None]}, k=9)
    rows = [f"u1,{item}" for item in best.items[0][:4]] + ["u1,new film", f"u9,{best.items[1][0]}"]
    seen.write_text("\n".join(["user,film", *rows]))
    out = tmp_path / "items.csv"
    with pytest.raises(SystemExit) as left:
        main(["predict", str(folder), str(path), "--out", str(out), "--top", "3",
              "--exclude", str(seen)])  # fmt: skip
    assert left.value.code == 0
    assert "note: 1 of the ids to exclude" in " ".join(capfd.readouterr().err.split())
    lines = list(csv.DictReader(out.read_text().splitlines()))
    assert [line["item"] for line in lines] == [*best.items[0][4:7], *best.items[1][:3]]
