"""The inverse temperature β of a softmax over scores."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from outsize.errors import ConfigError


class Temperature(nn.Module):
    """The inverse temperature β, fixed or learned. It is stored as log β, so it stays positive.

    Args:
        beta: The initial value.
        learned: Whether β is a parameter.
    """

    log_beta: Tensor

    def __init__(self, beta: float = 20.0, learned: bool = False) -> None:
        super().__init__()
        if not 0 < beta < math.inf:
            raise ConfigError(f"beta must be a finite number > 0, but got {beta}")
        start = torch.tensor(math.log(beta))
        if learned:
            self.log_beta = nn.Parameter(start)
        else:
            self.register_buffer("log_beta", start)

    def forward(self) -> Float32[Tensor, ""]:
        """Return β."""
        return self.log_beta.float().exp()
