"""Runs whose rows are updated in the backward pass."""

import pytest
import torch
from test_loop import (
    Recorder,
    assert_same_tree,
    curve,
    final_weights,
    make_config,
    make_loop,
    train_until,
)

import outsize
from outsize.errors import ConfigError, NonFiniteError
from outsize.training.tasks import ClickTask

FUSED = "embeddings.optimizer.fused=true"


def trained(*settings):
    recorder = Recorder()
    loop = make_loop(make_config("data.largest_vocabulary=3000", *settings), callbacks=recorder)
    loop.fit()
    return loop, recorder


def rows_of(loop):
    return {
        (part.table, name): tensor.clone()
        for part in loop.task.embeddings.store.parts()
        for name, tensor in part.tensors.items()
    }


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "full-adagrad", "adam"])
def test_a_fused_run_is_the_staged_one(kind):
    settings = ("train.epochs=1", f"embeddings.optimizer.kind={kind}", "schedule.shape=cosine")
    (staged, one), (fused, other) = trained(*settings), trained(*settings, FUSED)
    assert staged.task.embeddings.store.fused is None
    assert fused.task.embeddings.store.fused is not None
    for name, tensor in rows_of(staged).items():
        torch.testing.assert_close(rows_of(fused)[name], tensor, rtol=1e-4, atol=1e-6)
    for line, same in zip(one.of("train"), other.of("train"), strict=True):
        assert same["loss"] == pytest.approx(line["loss"], rel=1e-5)
        assert same["gradient_norm"] == pytest.approx(line["gradient_norm"], rel=1e-4)
    assert fused.state.test["loss"] == pytest.approx(staged.state.test["loss"], rel=1e-5)


def test_a_fused_run_resumed_is_bit_identical(tmp_path):
    config = make_config(FUSED, "schedule.shape=cosine")
    outsize.train(config, tmp_path / "whole", quiet=True)
    train_until(13, config, tmp_path / "stopped")
    outsize.train(config, tmp_path / "stopped", resume=True, quiet=True)
    assert curve(tmp_path / "stopped") == curve(tmp_path / "whole")
    assert_same_tree(final_weights(tmp_path / "stopped"), final_weights(tmp_path / "whole"))


def test_nan_is_refused_with_its_step_and_no_row_changes():
    loop = make_loop(make_config(FUSED))
    steps, original = loop.steps(), loop.task.loss
    for _ in range(6):
        next(steps)
    before = rows_of(loop)
    loop.task.loss = lambda batch: original(batch) * float("nan")
    with pytest.raises(NonFiniteError, match=r"step 7 \(epoch 1, batch 7\): the gradient of "):
        next(steps)
    for name, tensor in rows_of(loop).items():
        assert torch.equal(tensor, before[name]), name


def test_rows_are_not_fused_on_the_cpu_unless_asked():
    assert ClickTask(make_config()).embeddings.store.fused is None
    off = ClickTask(make_config("embeddings.optimizer.fused=false"))
    assert off.embeddings.store.fused is None


REFUSED = [
    (["train.clip_norm=1.0"], "train.clip_norm = 1 scales gradients of rows"),
    (["embeddings.store=sharded"], "ShardedStore on cpu cannot update rows in the backward pass"),
]


@pytest.mark.parametrize(("settings", "reason"), REFUSED)
def test_what_needs_the_gradients_of_rows_is_refused(settings, reason):
    with pytest.raises(ConfigError, match=f"fused = true, but .*{reason}.*leave it out"):
        ClickTask(make_config(FUSED, *settings))


def test_a_row_optimizer_without_fused_updates_is_refused(monkeypatch):
    class Plain(outsize.RowSGD):
        def __init__(self, store, learning_rate=0.01):
            super().__init__(store, learning_rate)

    monkeypatch.setitem(outsize.ROW_OPTIMIZERS, "plain", Plain)
    with pytest.raises(ConfigError, match="'plain' has no fused updates"):
        ClickTask(make_config(FUSED, "embeddings.optimizer.kind=plain"))
