"""Run by torchrun: dense weights stay equal on all ranks when a sharded run clips."""

import os

import torch

import outsize
from outsize.ranks.collectives import gather_rows, process_group, rank, world_size
from outsize.training import RunConfig
from outsize.training.strict_toml import decode

TREE = {
    "data": {"num_train": 400, "num_validation": 50, "num_test": 50, "num_dense": 3,
             "num_categorical": 3, "largest_vocabulary": 100},
    "model": {"bottom": [8], "top": [8]},
    "embeddings": {"dim": 4, "store": "sharded", "cache": {"share": 0.2}},
    "train": {"batch_size": 16, "clip_norm": 0.05, "device": "cpu"},
}  # fmt: skip

with process_group(torch.device("cpu")):
    model = outsize.train(decode(RunConfig, TREE, "tree"), quiet=True).model
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    everyone = gather_rows(weights)
    assert all(torch.equal(everyone[0], other) for other in everyone)
    print(f"rank {rank()} of {world_size()} has passed", flush=True)
os._exit(0)
