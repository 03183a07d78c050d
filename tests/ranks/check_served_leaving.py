"""Run by torchrun: a rank that ends while others ask it ends cleanly, and the others are told."""

import sys

import torch
import torch.distributed as dist

import outsize
from outsize.errors import OwnerError
from outsize.kernels.rows.updates import SGDRule
from outsize.stores import ServedStore
from outsize.testing.checks import refusal


def read_for_ever():
    while True:
        store.read(torch.arange(50))


dist.init_process_group("gloo")
store = ServedStore([outsize.TableSpec("rows", 50, 4)])
store.bind(SGDRule(learning_rate=1.0))
if dist.get_rank() == 1:
    for _ in range(20):
        store.read(torch.arange(50))
    print("rank 1 goes", flush=True)
    sys.exit(0)  # while others ask it
message = refusal(OwnerError, read_for_ever)
assert "rank" in message, message
print(f"rank {dist.get_rank()} has passed", flush=True)
sys.exit(0)
