"""Cross layers with a parallel or stacked MLP: DCN and DCNv2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from outsize.collection import FeatureInput
from outsize.models.click_model import ClickModel
from outsize.models.mlp import linear, mlp

Structure = Literal["parallel", "stacked"]


class CrossAndDeep(nn.Module):
    """Cross layers and an MLP, combined to one logit.

    "parallel": both read the input, and the logit is linear in their concatenated outputs.
    "stacked": the MLP reads the output of the cross layers, and the logit is linear in its output.
    Without hidden layers, both are the cross network alone.

    Args:
        width: Width of the input.
        crosses: The cross layers, first to last.
        hidden: Hidden widths of the MLP, each followed by a ReLU.
        structure: "parallel" or "stacked".
        bias: Whether the layers of the MLP and the output have biases.
        generator: Source of the initial weights.
    """

    def __init__(
        self,
        width: int,
        crosses: Sequence[nn.Module],
        hidden: Sequence[int],
        structure: Structure,
        bias: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.crosses = nn.ModuleList(crosses)
        self.is_parallel = structure == "parallel" and len(hidden) > 0
        self.deep = mlp((width, *hidden), final_relu=True, generator=generator, bias=bias)
        joined = (width, *hidden)[-1] + (width if self.is_parallel else 0)
        self.output = linear(joined, 1, generator=generator, bias=bias)

    def forward(self, x: Float[Tensor, "batch width"]) -> Float[Tensor, " batch"]:
        """One logit for each example."""
        crossed = x
        for cross in self.crosses:
            crossed = cross(x, crossed)
        if self.is_parallel:
            joined = torch.cat((crossed, self.deep(x)), dim=1)
        else:
            joined = self.deep(crossed)
        logits: Tensor = self.output(joined).squeeze(1)
        return logits


class CrossModel(ClickModel):
    """Predicts a click from dense features and vectors, concatenated, by a network of its own."""

    network: CrossAndDeep

    def forward(
        self, dense: Float[Tensor, "batch num_dense"], ids: Mapping[str, FeatureInput]
    ) -> Float[Tensor, " batch"]:
        """The logit of a click for each example."""
        vectors = self.embeddings.stacked(ids).to(dense.dtype)
        logits: Tensor = self.network(torch.cat((dense, vectors.flatten(1)), dim=1))
        return logits.float()
