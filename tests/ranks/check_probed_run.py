"""Run by several ranks: a run that probes leaves ranks equal, and a NaN ends it for all."""

import copy
import os
import sys

import torch

from outsize.errors import NonFiniteError
from outsize.ranks.collectives import gather_rows, process_group, rank, world_size
from outsize.tables import Probe
from outsize.testing.checks import refusal
from outsize.training import load_config
from outsize.training.build import build_dense_optimizer
from outsize.training.callbacks import Callbacks
from outsize.training.loop import Loop
from outsize.training.probing import recluster_probed
from outsize.training.tasks.click import ClickTask


class Probes(Callbacks):
    def __init__(self):
        self.lines = []

    def log(self, line):
        if line["split"] == "probe":
            self.lines.append({name: line[name] for name in line if name != "seconds"})


def make_loop(*settings):
    config = load_config(sys.argv[1], ["train.batch_size=16", *settings])
    torch.manual_seed(config.seed)
    probes = Probes()
    task = ClickTask(config)
    return Loop(task, config, build_dense_optimizer(config.optimizer, task.model), probes), probes


def state_of(loop):
    """Weights, pointers and moments."""
    moments = [value for state in loop.optimizers[0].state.values() for value in state.values()]
    return [*loop.task.model.state_dict().values(), *filter(torch.is_tensor, moments)]


def assert_equal_on_all_ranks(tensors):
    for tensor in tensors:
        mine = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        everyone = gather_rows(mine)
        assert all(torch.equal(everyone[0], other) for other in everyone)


def as_numbers(line):
    values = [value for value in line.values() if isinstance(value, bool | int | float)]
    return torch.tensor(values, dtype=torch.float64)


def check_ranks_are_equal_after_a_run():
    """Rates are chosen, and in two epochs the gain is measured, by numbers that all ranks share."""
    for epochs in (1, 2):
        loop, probes = make_loop(f"train.epochs={epochs}")
        loop.fit()
        assert len(probes.lines) == 2
        made = [line for line in probes.lines if "skipped" not in line]
        assert all((line["gained"] is not None) == (epochs == 2) for line in made)
        assert len(made) == (2 if epochs == 1 or made[0]["kept"] else 1)
        assert_equal_on_all_ranks([torch.tensor([loop.state.rejected_probe])])
        assert_equal_on_all_ranks([as_numbers(line) for line in probes.lines])
        assert_equal_on_all_ranks(state_of(loop))


def check_nan_of_one_rank_ends_the_probe_on_all():
    enter = Probe.block
    for culprit in range(world_size()):
        loop, _ = make_loop()
        for step in loop.steps():
            if step == 4:
                break
        before = copy.deepcopy(state_of(loop))
        loss, entered = loop.task.loss, []

        def block(probe, number, entered=entered):
            entered.append(number)
            return enter(probe, number)

        def flawed(batch, culprit=culprit, entered=entered, loss=loss):
            in_second_block = entered == [0, 1]
            return loss(batch) * (float("nan") if rank() == culprit and in_second_block else 1.0)

        Probe.block, loop.task.loss = block, flawed

        def probe(loop=loop):
            recluster_probed(
                loop.task, loop.config.embeddings.probe, 4, loop.optimizers[0], helper=True,
                weighted=True, state_numbers=2, reads_again=True,
            )  # fmt: skip

        error = refusal(NonFiniteError, probe)
        Probe.block = enter
        assert entered == [0, 1], entered
        assert "rows of a probe became NaN or infinite: lower its rate" in error, error
        for found, expected in zip(state_of(loop), before, strict=True):
            assert torch.equal(found, expected)
        assert_equal_on_all_ranks(state_of(loop))


with process_group(torch.device("cpu")):
    check_ranks_are_equal_after_a_run()
    check_nan_of_one_rank_ends_the_probe_on_all()
    print(f"rank {rank()} of {world_size()} has passed", flush=True)
os._exit(0)
