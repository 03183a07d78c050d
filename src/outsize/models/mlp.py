"""Linear layers and MLPs with seeded initialization."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from outsize.kernels.linear.linear_relu import linear_relu


def linear(
    fan_in: int, fan_out: int, *, generator: torch.Generator, bias: bool = True
) -> nn.Linear:
    """A linear layer, initialized as in the DLRM repository.

    Weights are normal with variance 2 / (fan-in + fan-out), biases with variance 1 / fan-out.
    """
    layer = nn.Linear(fan_in, fan_out, bias=bias)
    with torch.no_grad():
        layer.weight.normal_(0.0, math.sqrt(2.0 / (fan_in + fan_out)), generator=generator)
        if bias:
            layer.bias.normal_(0.0, math.sqrt(1.0 / fan_out), generator=generator)
    return layer


def mlp(
    sizes: Sequence[int], *, final_relu: bool, generator: torch.Generator, bias: bool = True
) -> nn.Sequential:
    """An MLP: linear layers with ReLU in between.

    Args:
        sizes: Widths from input to output.
        final_relu: Whether the last layer is followed by a ReLU too.
        generator: Source of the initial weights.
        bias: Whether the layers have biases.
    """
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [linear(fan_in, fan_out, generator=generator, bias=bias), nn.ReLU()]
    return _MLP(*(layers if final_relu else layers[:-1]))


class _MLP(nn.Sequential):
    """Layers in a row, of which a linear one and the ReLU after it are computed together."""

    def forward(self, inputs: Tensor) -> Tensor:
        layers = list(self)
        while layers:
            layer, *layers = layers
            if layers and _is_plain(layer, nn.Linear) and _is_plain(layers[0], nn.ReLU):
                assert isinstance(layer, nn.Linear)
                if layer.bias is not None:
                    inputs, layers = linear_relu(inputs, layer.weight, layer.bias), layers[1:]
                    continue
            inputs = layer(inputs)
        return inputs


def _is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer is what its class says, without hooks that calling it would run."""
    hooks = layer._forward_pre_hooks, layer._forward_hooks, layer._backward_hooks
    return type(layer) is kind and not any(hooks) and not layer._backward_pre_hooks
