import json
import re
import shutil
from pathlib import Path

import pytest

import outsize
from outsize.cli import main
from outsize.compare.finished import compare_runs, runs_table
from outsize.compare.named_runs import config_differences, read_runs, short_names
from outsize.compare.overlay_page import overlay_page
from outsize.errors import ConfigError
from outsize.training.config import RunConfig
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import decode, override

CLICK = {
    "data": {"num_train": 300, "num_validation": 100, "num_test": 100, "largest_vocabulary": 50,
             "num_categorical": 3},
    "model": {"bottom": [4], "top": [4]},
    "embeddings": {"dim": 4},
    "train": {"batch_size": 100, "log_every": 1, "validate_every": 2},
}  # fmt: skip
RETRIEVAL = {
    "data": {"kind": "synthetic-interactions", "num_queries": 60, "num_items": 40,
             "items_per_query": 8},
    "model": {"kind": "two-tower"},
    "embeddings": {"dim": 4},
    "train": {"batch_size": 100, "log_every": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of two click runs and one of retrieval."""
    folder = tmp_path_factory.mktemp("several")
    trees = {
        "one/run": CLICK,
        "two/run": override(CLICK, ["optimizer.learning_rate=0.01"]),
        "retrieval": RETRIEVAL,
    }
    for name, tree in trees.items():
        outsize.train(decode(RunConfig, tree, "test"), folder / name, quiet=True)
    return folder


def titles(page):
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_runs_are_drawn_in_common_plots(runs):
    page = overlay_page(read_runs([runs / "one/run", runs / "two/run"]))
    assert titles(page) == [
        "Test metrics at the best validation", "Log loss by step", "Log loss by time",
        "AUC by step", "AUC by time", "Calibration on the test split", "Examples per second",
        "Gradient norm", "Differences between the run files",
    ]  # fmt: skip
    assert page.count("</i>one/run</span>") == page.count("</i>two/run</span>") == 7
    assert "<td>optimizer.learning_rate</td><td>0.001</td><td>0.01</td>" in page
    assert page.count("<td>optimizer.") == 1
    assert "quality metrics are of the validation split, dashed lines of training" in page
    assert not re.search(r'(src|href)="(?!#)', page)


def test_runs_of_different_tasks_share_no_loss(runs):
    page = overlay_page(read_runs([runs / "one/run", runs / "retrieval"]))
    found = titles(page)
    assert "Log loss (click) by step" in found
    assert "Softmax loss (retrieval) by time" in found
    assert "of different tasks (click: run; retrieval: retrieval)" in page
    assert "There are no values of retrieval." in page  # under the AUC
    assert "<td>–</td>" in page


def test_the_table_names_the_loss_of_its_runs(runs):
    click, other, retrieval = compare_runs([runs / "one/run", runs / "two/run", runs / "retrieval"])
    assert "log loss" in runs_table([click, other]).columns
    assert "softmax loss" in runs_table([retrieval]).columns
    both = runs_table([click, retrieval])
    assert [row[4:6].count("–") for row in both.rows] == [1, 1]
    assert both.columns[4:6] == ("log loss", "softmax loss")


def test_a_run_without_times_is_named(runs, tmp_path):
    shutil.copytree(runs / "one/run", tmp_path / "older")
    log = tmp_path / "older" / "metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        del line["train_s"]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    page = overlay_page(read_runs([tmp_path / "older", runs / "two/run"]))
    assert "There are no times in the log of older." in page
    older, timed = compare_runs([tmp_path / "older", runs / "two/run"])
    assert older["train_s"] is None, "the time of its last call is another quantity"
    assert timed["train_s"] == max(
        line["train_s"] for line in RunFolder(runs / "two/run").metrics()
    )
    table = runs_table([older, timed])
    assert table.columns[-1] == "time of training"
    assert table.rows[0][-1] == "–"
    assert "configurations are the same" not in page


def test_names_are_as_short_as_they_can_be():
    assert short_names([Path("/a/x"), Path("/a/y")]) == ["x", "y"]
    assert short_names([Path("/a/x"), Path("/b/x")]) == ["a/x", "b/x"]


def test_a_run_named_twice_is_read_once(runs):
    assert len(read_runs([runs / "one/run", runs / "two" / ".." / "one/run"])) == 1


def test_settings_that_differ_are_listed_with_both_values(runs):
    found = config_differences(read_runs([runs / "one/run", runs / "two/run"]))
    assert found == {"optimizer.learning_rate": [0.001, 0.01]}


def call(*words):
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    return caught.value.code


def test_the_command_writes_one_page(runs, tmp_path, capfd):
    out = tmp_path / "page.html"
    assert call("report", runs / "one/run", runs / "two/run", "--out", out, "--json") == 0
    result = json.loads(capfd.readouterr().out)
    assert result["out"] == str(out)
    assert [run["test"].keys() for run in result["runs"]] == [{"loss", "auc"}] * 2
    assert "Log loss by step" in out.read_text()


def test_the_command_makes_the_report_of_a_run_again(runs, capfd):
    folder = RunFolder(runs / "retrieval")
    folder.report_file.unlink()
    assert call("report", folder.path) == 0
    assert capfd.readouterr().err == f"1 run  →  {folder.report_file}\n"
    assert "Learning rate" in folder.report_file.read_text()


@pytest.mark.parametrize("as_json", [False, True])
def test_a_mistake_is_one_line(runs, tmp_path, capfd, as_json):
    (tmp_path / "run.toml").write_text("seed = 1\n")
    shutil.copytree(runs / "one/run", tmp_path / "begun")
    RunFolder(tmp_path / "begun").log.clear()
    for words, message in {
        (tmp_path,): "holds no run",
        (tmp_path / "nowhere", runs / "one/run"): "holds no run",
        (tmp_path / "run.toml",): "is a run file",
        (tmp_path / "begun",): "has no metrics yet",
        (runs / "one/run", "--out", tmp_path / "no" / "page.html"): "could not write",
    }.items():
        assert call("report", *words, *(["--json"] if as_json else [])) == 2
        out, err = capfd.readouterr()
        assert message in err
        assert len(err.splitlines()) == 1
        assert bool(out) == as_json


def test_a_page_needs_runs_that_can_be_read(tmp_path):
    with pytest.raises(ConfigError, match="holds no run"):
        read_runs([tmp_path])
