"""A metric that does not exist is none; a run whose metrics are no numbers does not end well."""

from __future__ import annotations

import json
import math

import pytest

import outsize
from outsize.cli import main
from outsize.errors import DataError, NonFiniteError
from outsize.training.build import build_optimizer
from outsize.training.config import RunConfig, load_config
from outsize.training.loop import Loop
from outsize.training.loop_state import LoopState
from outsize.training.run_folder import RunFolder
from outsize.training.tasks import TASKS

RUN = """
[data]
num_train = 40
num_validation = 1
num_test = 1
num_dense = 2
num_categorical = 3
largest_vocabulary = 20
[model]
bottom = [4]
top = [4]
[train]
batch_size = 8
epochs = 2
early_stop = false
[checkpoint]
every = 3
"""


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return path


def make_loop(config: RunConfig) -> Loop:
    task = TASKS[config.task](config)
    return Loop(task, config, build_optimizer(config, task.trained))


def test_an_auc_of_one_example_is_none_wherever_it_is_read(run_file, tmp_path, capfd):
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as caught:
        main(["train", str(run_file), "--out", str(out)])
    assert caught.value.code == 0
    said = capfd.readouterr().err
    assert "auc none" in said
    assert "nan" not in said.lower()

    lines = [line for line in RunFolder(out).metrics() if line["split"] != "train"]
    assert lines
    assert all(line["auc"] is None and math.isfinite(line["loss"]) for line in lines)
    report = (out / "report.html").read_text()
    assert "none" in report
    assert ">nan<" not in report.lower()
    assert ">None<" not in report


def test_json_has_null_for_a_metric_that_does_not_exist(run_file, tmp_path, capfd):
    with pytest.raises(SystemExit):
        main(["train", str(run_file), "--out", str(tmp_path / "out"), "--json"])

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    result = json.loads(capfd.readouterr().out, parse_constant=refuse)
    assert result["validation"]["auc"] is None
    assert result["test"]["bayes_auc"] is None


def test_a_run_without_an_auc_resumes(run_file, tmp_path):
    whole = outsize.train(run_file, tmp_path / "out", quiet=True)
    again = outsize.train(run_file, tmp_path / "out", resume=True, quiet=True)
    assert again.best == whole.best
    assert again.best["auc"] is None


def test_nan_that_an_older_version_saved_for_a_missing_metric_is_none():
    state = LoopState.from_dict({"best": {"loss": 0.5, "auc": math.nan}, "test": {"auc": math.nan}})
    assert (state.best, state.test) == ({"loss": 0.5, "auc": None}, {"auc": None})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_run_that_measures_no_number_ends_in_one_line(run_file, bad, split):
    loop = make_loop(load_config(run_file))
    original = loop.task.evaluate
    loop.task.evaluate = lambda asked: {**original(asked), "loss": bad if asked == split else 0.5}

    with pytest.raises(NonFiniteError, match=f"step 5: loss of the {split} split is NaN or inf"):
        loop.fit()


def test_a_judge_that_does_not_exist_chooses_nothing(run_file):
    loop = make_loop(load_config(run_file))
    loop.task.judge = "auc"

    with pytest.raises(DataError, match="validation has no auc to choose the best step by"):
        loop.fit()


def test_a_split_without_examples_is_refused(tmp_path):
    lines = [f"{i % 2},u{i % 5},{'train' if i else 'test'}" for i in range(40)]
    (tmp_path / "clicks.csv").write_text("\n".join(["label,user,part", *lines]) + "\n")
    run = tmp_path / "run.toml"
    run.write_text(
        f'[data]\nkind = "tabular"\npath = ["{tmp_path}/clicks.csv"]\nlabel = "label"\n'
        'categorical = ["user"]\n[data.split]\nkind = "column"\ncolumn = "part"\n'
        '[model]\nkind = "logistic"\n'
    )
    with pytest.raises(DataError, match="validation"):
        outsize.train(run, quiet=True)
