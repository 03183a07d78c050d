"""Run by several ranks: nothing but the group itself holds the process group when a run ends."""

import sys
import weakref
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from outsize.ranks.collectives import process_group, rank
from outsize.training import load_config
from outsize.training.tasks import TASKS

examples = Path(sys.argv[1])
settings = {
    "click.toml": ["data.num_train=100", "data.num_validation=20", "data.num_test=20",
                   "data.largest_vocabulary=50"],
    "two_tower.toml": ["data.num_queries=100", "data.num_items=80"],
}  # fmt: skip

with process_group(torch.device("cpu")):
    for name, small in settings.items():
        config = load_config(examples / name, ["train.device=cpu", *small])
        task = TASKS[config.task](config)
        wrapper = weakref.ref(vars(task)["_forward"])
        assert isinstance(wrapper(), DistributedDataParallel), name
        task.release_ranks()
        assert wrapper() is None, name
    print(f"rank {rank()} released", flush=True)
