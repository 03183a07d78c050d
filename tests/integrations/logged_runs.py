"""A small run that is stopped and resumed, for tests of logs."""

import outsize
from outsize.training.callbacks import Callbacks
from outsize.training.config import RunConfig
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import decode, override

SMALL = {
    "data": {"num_train": 800, "num_validation": 100, "num_test": 100, "largest_vocabulary": 50,
             "num_categorical": 3},
    "model": {"bottom": [4], "top": [4]},
    "embeddings": {"dim": 4},
    "train": {"batch_size": 100, "log_every": 1, "validate_every": 4, "device": "cpu"},
    "checkpoint": {"every": 3, "best": False},
}  # fmt: skip


class _Stopped(Exception):
    pass


def make_config(*settings):
    return decode(RunConfig, override(SMALL, settings), "test")


def stopped_and_resumed(config, out, monkeypatch, last_step=5):
    """Train until after `last_step`, lose what came after the checkpoint of step 3, and resume."""
    advance = Callbacks.advance
    from outsize.training import run

    def stop(self, step):
        advance(self, step)
        if step == last_step + 1:
            raise _Stopped

    with monkeypatch.context() as patch:
        patch.setattr(run._FolderAndProgress, "advance", stop)
        try:
            outsize.train(config, out, quiet=True)
        except _Stopped:
            pass
        else:
            raise AssertionError("the run was not stopped")
    before = RunFolder(out).metrics()
    outsize.train(config, out, resume=True, quiet=True)
    return before, RunFolder(out).metrics()
