"""The checkpoint of the best validation is kept beside the newest ones."""

import shutil

import pytest
import torch
from test_loop import assert_same_tree, curve, make_config, make_loop, train_until

import outsize
from outsize.checkpoint import list_checkpoints, load_checkpoint, step_of
from outsize.errors import CheckpointError
from outsize.training.callbacks import Callbacks
from outsize.training.loop import Loop
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import choose_checkpoint

FADING = (
    "train.epochs=4",
    "optimizer.learning_rate=0.3",
    "checkpoint.every=5",
    "checkpoint.keep=1",
)
"""A rate so high that the best validation is not the last."""


@pytest.fixture(scope="module")
def faded(tmp_path_factory):
    """A run that went on past its best; tests only read it."""
    folder = tmp_path_factory.mktemp("faded") / "run"
    result = outsize.train(make_config(*FADING), folder, quiet=True)
    assert result.best["step"] < result.steps
    return result


class Writing(Callbacks):
    """Writes the log of a run."""

    def __init__(self, folder):
        self._folder = folder

    def log(self, line):
        self._folder.log.append(line)


def names(run):
    return [path.name for path in list_checkpoints(run / "checkpoint")]


def test_the_best_checkpoint_is_kept_beside_the_newest(faded):
    best, newest = list_checkpoints(faded.out / "checkpoint")
    assert step_of(best) == faded.best["step"]
    assert step_of(newest) == faded.steps
    assert choose_checkpoint(RunFolder(faded.out)).folder == best


def test_its_weights_have_the_reported_metrics(faded):
    loop = make_loop(make_config(*FADING))
    loop.load(list_checkpoints(faded.out / "checkpoint")[0])
    assert loop.task.evaluate("test") == faded.test
    assert {"step": loop.state.step, **loop.task.evaluate("validation")} == faded.best


def test_a_resumed_run_keeps_the_same_best(faded, tmp_path):
    train_until(faded.best["step"] + 1, make_config(*FADING), tmp_path / "cut")
    outsize.train(make_config(*FADING), tmp_path / "cut", resume=True, quiet=True)
    assert names(tmp_path / "cut") == names(faded.out)
    assert curve(tmp_path / "cut") == curve(faded.out)
    for one, other in zip(
        *(list_checkpoints(run / "checkpoint") for run in (tmp_path / "cut", faded.out)),
        strict=True,
    ):
        assert_same_tree(load_checkpoint(one), load_checkpoint(other))


def test_a_better_validation_replaces_the_best_and_nothing_else(tmp_path):
    loop = make_loop(make_config("checkpoint.every=1000", "checkpoint.keep=1"), tmp_path)
    seen = set()
    for _ in loop.steps():
        found = [step_of(path) for path in list_checkpoints(tmp_path)]
        assert found in ([], [loop.state.best.get("step")])
        seen |= set(found)
    assert len(seen) > 1


def test_a_run_may_keep_none(tmp_path):
    settings = (*FADING, "checkpoint.best=false", "train.epochs=1")
    result = outsize.train(make_config(*settings), tmp_path / "run", quiet=True)
    (newest,) = list_checkpoints(tmp_path / "run" / "checkpoint")
    assert step_of(newest) == result.steps


def test_the_best_is_saved_before_its_tables_are_reclustered(tmp_path):
    settings = (
        "embeddings.kind=tables", "embeddings.method=cce", "embeddings.max_params=64",
        "embeddings.recluster.count=1", "embeddings.recluster.every=7", "checkpoint.every=7",
        "checkpoint.keep=9", "data.num_train=640", "data.largest_vocabulary=300",
    )  # fmt: skip
    config = make_config(*settings)
    folder = RunFolder(tmp_path)
    recorder = Writing(folder)
    loop = make_loop(config, folder.checkpoints, recorder)
    for step in loop.steps():
        if step == 7:
            break
    before, after = list_checkpoints(folder.checkpoints)
    assert [step_of(before), step_of(after)] == [7, 7]
    resumed = make_loop(make_config(*settings, "checkpoint.every=1000"), tmp_path / "resumed")
    resumed.load(before)
    next(resumed.steps())
    assert not (tmp_path / "resumed").exists()  # the best is saved; what came after is not it
    resumed.fit()
    best = load_checkpoint(after)["loop"]["best"]
    other = make_loop(config)
    other.load(before)
    assert {"step": 7, **other.task.evaluate("validation")} == best
    other.load(after)
    assert {"step": 7, **other.task.evaluate("validation")} != best
    assert choose_checkpoint(folder).folder == before
    shutil.rmtree(before)  # as an older version would leave it
    assert choose_checkpoint(folder).note.startswith("no checkpoint of the best validation")
    assert choose_checkpoint(folder).metrics == {}
    loop.fit()
    for name, weight in resumed.task.model.state_dict().items():
        assert torch.equal(weight, loop.task.model.state_dict()[name])


def test_a_best_that_cannot_be_written_leaves_the_earlier_one(tmp_path, monkeypatch):
    loop = make_loop(make_config("checkpoint.every=1000", "checkpoint.keep=1"), tmp_path)
    write = Loop.state_dict

    def failing(self):
        if self.state.step > 7:
            raise CheckpointError("could not write checkpoint")
        return write(self)

    monkeypatch.setattr(Loop, "state_dict", failing)
    with pytest.raises(CheckpointError):
        loop.fit()
    (kept,) = list_checkpoints(tmp_path)
    assert step_of(kept) == 7
    load_checkpoint(kept)
