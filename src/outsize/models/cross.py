"""Cross layers of DCN (Wang et al. 2017) and DCNv2 (Wang et al. 2021).

Each layer multiplies its input x by the input x₀ of the network.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from outsize.models.mlp import linear


class VectorCross(nn.Module):
    """DCN's layer (Wang et al. 2017): x₀ (x · w) + b + x.

    Args:
        width: Width of the input.
        generator: Source of the initial weights.
    """

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = linear(width, 1, generator=generator, bias=False)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(
        self, first: Float[Tensor, "batch width"], x: Float[Tensor, "batch width"]
    ) -> Float[Tensor, "batch width"]:
        """The next x, given x₀ and x."""
        crossed: Tensor = first * self.weight(x) + self.bias + x
        return crossed


class MatrixCross(nn.Module):
    """DCNv2's layer (Wang et al. 2021): x₀ ⊙ (W x + b) + x, with W = U Vᵀ where a rank is given.

    Args:
        width: Width of the input.
        rank: Columns of U and V; `None` for a full W.
        generator: Source of the initial weights.
    """

    def __init__(self, width: int, rank: int | None, generator: torch.Generator) -> None:
        super().__init__()
        wide = width if rank is None else rank
        self.down = None if rank is None else linear(width, rank, generator=generator, bias=False)
        self.weight = linear(wide, width, generator=generator, bias=False)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(
        self, first: Float[Tensor, "batch width"], x: Float[Tensor, "batch width"]
    ) -> Float[Tensor, "batch width"]:
        """The next x, given x₀ and x."""
        inner = x if self.down is None else self.down(x)
        crossed: Tensor = first * (self.weight(inner) + self.bias) + x
        return crossed
