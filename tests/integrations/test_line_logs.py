import sys

import pytest
from logged_runs import make_config

import outsize
from outsize.cli import main
from outsize.errors import ConfigError
from outsize.integrations import line_logs
from outsize.integrations.line_logs import require_package, scalars_of
from outsize.training.log_config import LogConfig


def test_numbers_of_a_line_are_scalars():
    line = {"step": 3, "split": "test", "train_s": 1.5, "loss": 0.5, "auc": None, "epochs": 1,
            "calibration_count": [1, 2], "is_it": True}  # fmt: skip
    assert scalars_of(line) == {"test/loss": 0.5, "test/epochs": 1.0}


def test_reclusterings_are_told_apart_by_table():
    line = {"step": 3, "split": "recluster", "table": "c1", "mse": 0.25, "entropies": [0.1]}
    assert scalars_of(line) == {"recluster/c1/mse": 0.25}


@pytest.mark.parametrize("setting", ["log.tensorboard=true", "log.wandb=clicks"])
def test_a_package_that_is_absent_is_named_with_its_extra(setting, tmp_path, monkeypatch):
    monkeypatch.setattr(line_logs, "find_spec", lambda name: None)
    name = setting.removeprefix("log.").partition("=")[0]
    with pytest.raises(ConfigError, match=rf"pip install 'outsize\[{name}\]'") as caught:
        outsize.train(make_config(setting), tmp_path / "run", quiet=True)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_what_is_installed_is_found():
    require_package("torch", "key")
    with pytest.raises(ConfigError, match="needs the package no_such_package"):
        require_package("no_such_package", "key")


def test_logs_need_a_run_folder():
    with pytest.raises(ConfigError, match="give out="):
        outsize.train(make_config("log.tensorboard=true"), quiet=True)


def test_a_project_has_a_name(capfd, tmp_path):
    with pytest.raises(ConfigError, match="name of a project"):
        LogConfig(wandb=" ")
    (tmp_path / "run.toml").write_text("[log]\ntensorbord = true\n")
    with pytest.raises(SystemExit):
        main(["train", str(tmp_path / "run.toml")])
    assert "Did you mean 'tensorboard'?" in capfd.readouterr().err


def test_neither_package_is_imported_unless_it_is_wanted(tmp_path, monkeypatch):
    for name in ("tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises
    outsize.train(make_config("train.steps=1"), tmp_path / "run", quiet=True)
