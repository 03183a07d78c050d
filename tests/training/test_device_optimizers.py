"""Dense optimizers whose learning rates are on the device do what torch's do."""

import json
from copy import deepcopy

import pytest
import torch
from torch.optim import SGD, Adagrad, AdamW

from outsize.training.device_optimizers import DeviceAdagrad, DeviceAdamW, DeviceSGD
from outsize.training.loop_state import load_plain_state, plain_state
from outsize.training.saved_state import require_fit

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
KINDS = [
    (DeviceSGD, SGD, {}),
    (DeviceSGD, SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    (DeviceAdagrad, Adagrad, {}),
    (DeviceAdagrad, Adagrad, {"weight_decay": 0.1}),
    (DeviceAdamW, AdamW, {"weight_decay": 0.1}),
]


def make(kind, settings, device):
    generator = torch.Generator().manual_seed(0)
    weights = [
        torch.nn.Parameter(torch.randn(*shape, generator=generator).to(device))
        for shape in ((5, 3), (4,))
    ]
    groups = [{"params": weights[:1]}, {"params": weights[1:], "lr": 0.2}]
    return weights, kind(groups, lr=0.1, **settings)


def train(weights, optimizer, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator).to(weight.device)
        optimizer.step()


def assert_close(one, other):
    for left, right in zip(one, other, strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("ours", "theirs", "settings"), KINDS)
def test_they_train_as_torchs_do(ours, theirs, settings, device):
    (one, optimizer), (other, peer) = (make(kind, settings, device) for kind in (ours, theirs))
    train(one, optimizer, 5)
    train(other, peer, 5)
    assert_close(one, other)
    assert not torch.equal(one[0], make(ours, settings, device)[0][0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("ours", "theirs", "settings"), KINDS)
def test_states_are_those_of_torch_and_load_into_each_other(ours, theirs, settings, device):
    (one, optimizer), (other, peer) = (make(kind, settings, device) for kind in (ours, theirs))
    train(one, optimizer, 3)
    train(other, peer, 3)
    assert optimizer.state_dict()["param_groups"] == peer.state_dict()["param_groups"]
    third, resumed = make(ours, settings, device)
    resumed.load_state_dict(deepcopy(peer.state_dict()))
    for weight, value in zip(third, other, strict=True):
        weight.data.copy_(value)
    train(third, resumed, 4, seed=2)
    train(other, peer, 4, seed=2)
    assert_close(third, other)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("ours", "theirs", "settings"), KINDS)
def test_checkpoints_of_either_fit_both(ours, theirs, settings, device):
    made = [make(kind, settings, device) for kind in (ours, theirs)]
    for weights, optimizer in made:
        train(weights, optimizer, 2)
    for _, saved in made:
        for _, optimizer in made:
            loop, state = {"step": 0, "epoch": 0, "batch": 0}, plain_state(saved)
            state["param_groups"] = json.loads(json.dumps(state["param_groups"]))
            whole = {"loop": loop, "model": {}, "optimizers": [state]}
            require_fit(whole, 1, {}, [optimizer], counts_rows=False)
            load_plain_state(optimizer, deepcopy(state))


@pytest.mark.gpu
@pytest.mark.parametrize(("ours", "theirs", "settings"), KINDS)
def test_a_graph_follows_the_learning_rate_bit_for_bit(ours, theirs, settings):
    (one, optimizer), (other, eager) = (make(ours, settings, "cuda") for _ in range(2))
    train(one, optimizer, 3)
    train(other, eager, 3)
    gradients = [weight.grad for weight in one]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for rate in (0.05, 0.01, 0.02):
        for made in (optimizer, eager):
            made.param_groups[0]["lr"] = rate
        for mine, weight in zip(gradients, other, strict=True):
            mine.copy_(weight.grad.mul_(0.5))
        optimizer.refresh_settings()
        graph.replay()
        eager.step()
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
