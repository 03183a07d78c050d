"""Tables that are networks: DHE of any depth, and a network over hashed rows.

"Clustering the Sketch" fixes the depth of DHE since "in general, DHE performs better with fewer
layers when the number of parameters is fixed", and speculates that hash embeddings with a network
on top could replace DHE's many hashes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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

_HASH_RANGE = 1 << 24
_GAIN = 1.5  # about what keeps the variance of normal inputs through mish
_NUM_HASHES = 4
_SAMPLE_IDS = 256


class DeepTable(EmbeddingTable):
    """DHE with `depth` square layers before the output layer; 3 in the text and in `dhe`.

    Args:
        spec: The table.
        width: Hashes per id, and units per layer.
        depth: Layers before the output layer.
        seed: Seed of the hashes and of the initial layers.
    """

    def __init__(self, spec: TableSpec, *, width: int, depth: int = 3, seed: int = 0) -> None:
        super().__init__(spec)
        self.depth = depth
        self.register_buffer("hashes", draw_hashes(width, seed))
        self.hashes: Tensor
        stds = [math.sqrt(3 / width)] + [_GAIN / math.sqrt(width)] * (depth - 1)
        self.layers = nn.ParameterList(
            fresh_factor(spec, width, width, std, seed, f"layer {j}") for j, std in enumerate(stds)
        )
        self.output = fresh_factor(spec, width, spec.dim, 1 / math.sqrt(width), seed, "output")
        _scale_output(self, self.output)

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> DeepTable:
        depth: int = options.get("depth", cls.default_depth)

        def cost(width: int) -> Cost:
            return Cost(depth * width**2 + width * spec.dim, hash_bytes(width))

        width = largest_size("deep", spec, budget, cost)
        return cls(spec, width=width, depth=depth, seed=seed)

    default_depth = 3

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {"width": self.hashes.shape[0], "depth": self.depth}

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        values = hash_ids(ids, self.hashes, _HASH_RANGE).float()
        return _network(values * (2 / (_HASH_RANGE - 1)) - 1, list(self.layers)) @ self.output


def deep_table(depth: int) -> type[DeepTable]:
    """DHE of a depth, as a method that a budget sizes."""

    class Deep(DeepTable):
        default_depth = depth

    return Deep


class HashedNetworkTable(EmbeddingTable):
    """The sum of hashed rows, through one hidden layer: hash embeddings with a network on top.

    T[i] = W₂ mish(W₁ Σ_j M_j[h_j(i)]), with one hash function into each of four segments of rows.
    About half of a budget is rows.

    Args:
        spec: The table.
        width: Numbers per row, and units of the hidden layer.
        num_rows: Rows per segment.
        seed: Seed of the hashes and of the initial values.
    """

    def __init__(self, spec: TableSpec, *, width: int, num_rows: int, seed: int = 0) -> None:
        super().__init__(spec)
        self.num_rows = num_rows
        total = num_rows * _NUM_HASHES
        self.rows = fresh_factor(spec, total, width, _NUM_HASHES**-0.5, seed, "rows")
        self.hidden = fresh_factor(spec, width, width, 1 / math.sqrt(width), seed, "hidden")
        self.output = fresh_factor(spec, width, spec.dim, 1 / math.sqrt(width), seed, "output")
        self.register_buffer("hashes", draw_hashes(_NUM_HASHES, seed))
        self.hashes: Tensor
        _scale_output(self, self.output)

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> HashedNetworkTable:
        half = Budget(None if budget.max_params is None else budget.max_params // 2, None)
        width = largest_size("hashed-network", spec, half, lambda w: Cost(w * (w + spec.dim), 0))

        def cost(num_rows: int) -> Cost:
            params = width * (width + spec.dim + _NUM_HASHES * num_rows)
            return Cost(params, hash_bytes(_NUM_HASHES))

        return cls(
            spec,
            width=width,
            num_rows=largest_size("hashed-network", spec, budget, cost),
            seed=seed,
        )

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {"width": self.hidden.shape[0], "num_rows": self.num_rows}

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        first = torch.arange(_NUM_HASHES, device=ids.device) * self.num_rows
        places = hash_ids(ids, self.hashes, self.num_rows) + first
        summed = F.embedding(places, self.rows).sum(dim=1)
        return _network(summed, [self.hidden]) @ self.output


def _network(
    inputs: Float[Tensor, "n width"], layers: Sequence[Float[Tensor, "width width"]]
) -> Float[Tensor, "n width"]:
    for layer in layers:
        inputs = F.mish(inputs @ layer)
    return inputs


@torch.no_grad()
def _scale_output(table: EmbeddingTable, output: Tensor) -> None:
    """Scale the output layer so that vectors of a sample of ids have the scale of the spec."""
    if output.is_meta:
        return
    spec = table.spec
    num_ids = min(spec.num_rows, _SAMPLE_IDS)
    sample = torch.arange(num_ids) * (spec.num_rows // num_ids)
    measured = table.lookup(sample).double().square().mean().sqrt().item()
    output.mul_(spec.init.std_for(spec.dim) / measured)
