"""Stacks of linear layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import nn


def mlp(sizes: Sequence[int], *, final_relu: bool, generator: torch.Generator) -> nn.Sequential:
    """Linear layers with ReLU between, initialised as DLRM's authors do.

    Weights are normal with variance 2 / (fan-in + fan-out), biases with variance 1 / fan-out.

    Args:
        sizes: Widths from input to output.
        final_relu: Whether the last layer is followed by a ReLU too.
        generator: Source of the initial weights.
    """
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layer = nn.Linear(fan_in, fan_out)
        with torch.no_grad():
            layer.weight.normal_(0.0, math.sqrt(2.0 / (fan_in + fan_out)), generator=generator)
            layer.bias.normal_(0.0, math.sqrt(1.0 / fan_out), generator=generator)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*(layers if final_relu else layers[:-1]))
