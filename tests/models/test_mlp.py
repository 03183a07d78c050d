"""MLPs are torch's layers in a row, also where two are computed together."""

import pytest
import torch
from torch import nn

from outsize.models.mlp import mlp


def made(final_relu=False, bias=True):
    return mlp(
        (5, 7, 4, 3), final_relu=final_relu, generator=torch.Generator().manual_seed(0), bias=bias
    )


@pytest.mark.parametrize("final_relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_values_and_gradients_are_those_of_the_layers(final_relu, bias, device):
    layers = made(final_relu, bias).to(device)
    plain = nn.Sequential(*layers)
    inputs = torch.randn(30, 5, generator=torch.Generator().manual_seed(1)).to(device)
    leaves = [inputs.requires_grad_(), *layers.parameters()]
    results = []
    for each in (layers, plain):
        outputs = each(inputs)
        results.append([outputs, *torch.autograd.grad(outputs.square().sum(), leaves)])
    torch.testing.assert_close(*results)


def test_names_of_weights_are_those_of_the_layers():
    layers = made()
    assert list(layers.state_dict()) == list(nn.Sequential(*layers).state_dict())
    assert isinstance(layers, nn.Sequential)
    assert [type(layer) for layer in layers] == [
        nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear,
    ]  # fmt: skip


def test_hooks_of_layers_are_called():
    layers, seen = made(), []
    layers[0].register_forward_hook(lambda *_: seen.append("linear"))
    layers[3].register_forward_pre_hook(lambda *_: seen.append("relu"))
    layers(torch.zeros(2, 5))
    assert seen == ["linear", "relu"]


def test_a_layer_that_is_replaced_is_used():
    layers = made()
    layers[1] = nn.Tanh()
    torch.testing.assert_close(
        layers(torch.ones(2, 5)), nn.Sequential(*layers)(torch.ones(2, 5)), rtol=0, atol=0
    )
