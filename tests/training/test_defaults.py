"""Defaults that do not punish, and runs that are made longer when they are resumed."""

import pytest
import torch
from test_loop import assert_same_tree, final_weights, make_config

import outsize
from outsize.errors import ConfigError
from outsize.training.build import build_optimizer
from outsize.training.run_folder import RunFolder
from outsize.training.tasks import ClickTask


def test_a_finished_run_is_extended_as_if_it_had_been_longer(tmp_path):
    short = make_config("train.epochs=1", "train.validate_every=16")
    long = make_config("train.epochs=2", "train.validate_every=16")
    outsize.train(long, tmp_path / "whole", quiet=True)
    assert outsize.train(short, tmp_path / "grown", quiet=True).stopped == "finished"
    grown = outsize.train(long, tmp_path / "grown", resume=True, quiet=True)
    assert grown.steps == 32
    one, other = (final_weights(tmp_path / name) for name in ("grown", "whole"))
    assert_same_tree(one["model"], other["model"])
    assert_same_tree(one["rows"], other["rows"])
    assert RunFolder(tmp_path / "grown").config() == long


def test_a_run_that_ended_amid_an_epoch_goes_on_there(tmp_path):
    outsize.train(make_config("train.steps=5"), tmp_path / "run", quiet=True)
    longer = make_config("train.steps=9")
    assert outsize.train(longer, tmp_path / "run", resume=True, quiet=True).steps == 9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["schedule.shape=cosine"], "another train.steps: schedule.shape = 'cosine' decays"),
        (["embeddings={kind='tables',method='cce',max_params=64}"], "recluster spreads"),
    ],
)
def test_a_run_whose_schedule_has_an_end_is_not_extended(tmp_path, settings, message):
    outsize.train(make_config("train.steps=3", *settings), tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError, match=message):
        outsize.train(
            make_config("train.steps=4", *settings), tmp_path / "run", resume=True, quiet=True
        )


def test_a_run_is_not_made_shorter_than_it_is(tmp_path):
    outsize.train(make_config("train.steps=5"), tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError, match=r"has taken 5 steps, and .* ask for 4"):
        outsize.train(make_config("train.steps=4"), tmp_path / "run", resume=True, quiet=True)


def test_tables_have_a_learning_rate_of_their_own():
    config = make_config("embeddings={kind='tables',dim=4,learning_rate=0.02}")
    task = ClickTask(config)
    dense, tables = build_optimizer(config, task.model).param_groups
    assert (dense["lr"], tables["lr"]) == (0.001, 0.02)
    assert {id(p) for p in tables["params"]} == {id(p) for p in task.embeddings.parameters()}
    num = len(dense["params"]) + len(tables["params"])
    assert num == len(list(task.model.parameters()))
    (one,) = build_optimizer(make_config("embeddings.kind=tables"), task.model).param_groups
    assert one["lr"] == 0.001


def test_a_run_with_a_rate_of_its_own_for_tables_resumes(tmp_path):
    settings = ("embeddings={kind='tables',dim=4,learning_rate=0.02}", "train.epochs=1")
    whole = outsize.train(make_config(*settings), tmp_path / "whole", quiet=True)
    outsize.train(make_config(*settings, "train.steps=6"), tmp_path / "cut", quiet=True)
    again = outsize.train(make_config(*settings), tmp_path / "cut", resume=True, quiet=True)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name])


def test_a_low_rate_for_tables_is_told_with_a_number(capfd, tmp_path):
    outsize.train(make_config("embeddings.kind=tables", "train.steps=1"))
    assert "0.708 with embeddings.learning_rate = 0.03" in capfd.readouterr().err.replace("\n", " ")
    outsize.train(make_config("train.steps=1"))
    assert "note:" not in capfd.readouterr().err
    outsize.train(make_config("train.steps=1", "model={kind='logistic'}"))
    assert "set embeddings.dim = 1" in capfd.readouterr().err.replace("\n", " ")


def test_the_weights_of_logistic_regression_start_near_zero():
    task = ClickTask(make_config("model={kind='logistic'}"))
    batch = next(task.train_batches(0, 0))
    assert task.model(batch.dense, batch.ids).abs().max() < 0.05
    asked = ClickTask(make_config("model={kind='logistic'}", "embeddings.init_std=0.5"))
    assert asked.model(batch.dense, batch.ids).abs().max() > 0.5
