"""Deep hash embeddings (DHE; Kang et al. 2021), in the form that "Clustering the Sketch" uses.

    T[i] = W₄ mish(W₃ mish(W₂ mish(W₁ x(i)))),     x(i) = (h₁(i), …, h_w(i)) scaled to [-1, 1]

No rows are stored. A network without biases computes the vector of an id from `w` hashes of it. It
has 3w² + w·dim parameters.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from outsize.contracts import EmbeddingTable
from outsize.hashing import draw_hashes, hash_ids
from outsize.spec import Budget, TableSpec
from outsize.tables.factors import fresh_factor
from outsize.tables.sizing import Cost, hash_bytes, largest_size

_NUM_LAYERS = 3  # before the output layer
_HASH_RANGE = 1 << 24  # integers up to here are exact in float32
_SAMPLE_IDS = 256


class DHETable(EmbeddingTable):
    """A network over hashes of the id.

    Hidden layers are initialized to preserve variance. The output layer is then scaled so that the
    vectors of a fixed sample of ids have the root mean square of the spec.

    Args:
        spec: The table.
        width: Hashes per id, and units per layer; h in the paper.
        seed: Seed of the hash functions and of the initial layers.
        papers_init: Draw every layer by the Xavier uniform rule instead.
    """

    def __init__(
        self, spec: TableSpec, *, width: int, seed: int = 0, papers_init: bool = False
    ) -> None:
        super().__init__(spec)
        self.register_buffer("hashes", draw_hashes(width, seed))
        self.hashes: Tensor

        def draw(num_columns: int, std: float, part: str) -> nn.Parameter:
            if papers_init:
                xavier = math.sqrt(2 / (width + num_columns))
                return fresh_factor(spec, width, num_columns, xavier, seed, part, "uniform")
            return fresh_factor(spec, width, num_columns, std, seed, part)

        stds = [math.sqrt(3 / width)] + [_mish_gain() / math.sqrt(width)] * (_NUM_LAYERS - 1)
        layers = [draw(width, std, f"layer {j}") for j, std in enumerate(stds)]
        self.layers = nn.ParameterList(layers)
        self.output = draw(spec.dim, _mish_gain() / math.sqrt(width), "output")
        if not papers_init and not self.output.is_meta:
            self._scale_output()

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> DHETable:
        def cost(width: int) -> Cost:
            return Cost(_NUM_LAYERS * width**2 + width * spec.dim, hash_bytes(width))

        width = largest_size("dhe", spec, budget, cost)
        return cls(spec, width=width, seed=seed, **options)

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {"width": self.hashes.shape[0]}

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        values = hash_ids(ids, self.hashes, _HASH_RANGE).float()
        hidden = (values * (2 / (_HASH_RANGE - 1)) - 1).to(self.output.dtype)
        for layer in self.layers:
            hidden = F.mish(hidden @ layer)
        return hidden @ self.output

    @torch.no_grad()
    def _scale_output(self) -> None:
        num_ids = min(self.spec.num_rows, _SAMPLE_IDS)
        sample = torch.arange(num_ids) * (self.spec.num_rows // num_ids)
        measured = self.lookup(sample).double().square().mean().sqrt().item()
        self.output.mul_(self.spec.init.std_for(self.spec.dim) / measured)


def _mish_gain() -> float:
    """The factor by which mish must be scaled to keep the variance of standard normal inputs."""
    z = torch.linspace(-10, 10, 2001, dtype=torch.float64, device="cpu")
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return 1 / math.sqrt(torch.trapezoid(F.mish(z).square() * density, z).item())
