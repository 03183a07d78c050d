"""Small retrieval runs."""

import pytest
import torch

from outsize.negatives import NEGATIVES
from outsize.training.build import build_dense_optimizer
from outsize.training.callbacks import Callbacks
from outsize.training.config import RunConfig
from outsize.training.loop import Loop
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import decode, override
from outsize.training.tasks import TASKS

BASE = {
    "data": {"kind": "synthetic-interactions", "num_queries": 60, "num_items": 50,
             "items_per_query": 8, "num_groups": 6, "latent_dim": 4},
    "model": {"kind": "two-tower", "dim": 8, "hidden": [8]},
    "negatives": {"kind": "cache", "num_negatives": 4, "refresh": 0.1},
    "embeddings": {"dim": 4},
    "train": {"batch_size": 32, "epochs": 2, "validate_every": 7, "log_every": 5,
              "early_stop": False, "device": "cpu"},
    "checkpoint": {"every": 6},
}  # fmt: skip
# Matrix factorisation, and nothing but rows to train.
PLAIN = ("model.hidden=[]", "model.dim=4", 'model.query_features=["query"]',
         'model.item_features=["item"]')  # fmt: skip


def make_config(*settings):
    return decode(RunConfig, override(BASE, settings), "test")


def make_loop(config, checkpoints=None, callbacks=None):
    task = TASKS[config.task](config)
    optimizer = build_dense_optimizer(config.optimizer, task.trained)
    return Loop(task, config, optimizer, callbacks, checkpoints)


class Writes(Callbacks):
    def __init__(self, folder):
        self._folder = folder

    def log(self, line):
        self._folder.log.append(line)


def train_until(step, config, out):
    folder = RunFolder(out)
    folder.begin(config)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        loop = make_loop(config, folder.checkpoints, Writes(folder))
        loop._stop_asked = lambda: loop.state.step == step
        with pytest.raises(KeyboardInterrupt):
            loop.fit()


def without_strays(*settings):
    """A configuration with only those keys of [negatives] that its kind has."""
    tree = override(BASE, settings)
    kind = NEGATIVES[tree["negatives"].pop("kind")]
    known = {name: v for name, v in tree["negatives"].items() if name in kind.__dataclass_fields__}
    names = {k: name for name, k in NEGATIVES.items()}
    tree["negatives"] = {"kind": names[kind], **known}
    return decode(RunConfig, tree, "test")
