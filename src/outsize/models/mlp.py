"""Linear layers and MLPs with seeded initialization."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import nn


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
    return nn.Sequential(*(layers if final_relu else layers[:-1]))
