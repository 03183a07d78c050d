"""What several benchmarks of rows train on, and a step of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.collection import EmbeddingCollection
from outsize.data.zipf import Zipf
from outsize.optimizers import RowOptimizer


@dataclass(frozen=True)
class Features:
    """Features that read a table each.

    Attributes:
        num_tables: Number of tables, one feature each.
        num_rows: Rows per table.
        dim: Width of a row.
        batch_size: Examples per step.
        skew: Exponent of the Zipf distribution of ids; 0 for uniform ids.
    """

    num_tables: int = 26
    num_rows: int = 1_000_000
    dim: int = 16
    batch_size: int = 2048
    skew: float = 1.05

    @property
    def names(self) -> list[str]:
        """The names of the features."""
        return [f"feature{i}" for i in range(self.num_tables)]


def scattered_ids(
    num_rows: int, num: int, draw: torch.Generator, skew: float = 1.05
) -> Int64[Tensor, " num"]:
    """Ids of a Zipf distribution, the popular ones scattered over all rows."""
    ranks = Zipf([num_rows], skew).ranks(torch.rand(num, 1, generator=draw)).squeeze(1)
    return ranks * 48_271 % num_rows


def make_batches(
    shape: Features, num: int, seed: int = 0
) -> tuple[list[dict[str, Tensor]], Float[Tensor, "batch features dim"]]:
    """A number of batches of ids by feature, and a gradient of their vectors."""
    draw = torch.Generator().manual_seed(seed)

    def ids() -> Tensor:
        return scattered_ids(shape.num_rows, shape.batch_size, draw, shape.skew)

    batches = [{name: ids() for name in shape.names} for _ in range(num)]
    gradient = torch.randn(shape.batch_size, len(shape.names), shape.dim, generator=draw)
    return batches, gradient / shape.batch_size


def train_rows(
    embeddings: EmbeddingCollection,
    rows: RowOptimizer,
    turn: Iterator[Mapping[str, Tensor]],
    gradient: Float[Tensor, "batch features dim"],
) -> None:
    """One step on the next batch: look-up, backward and update."""
    rows.zero_grad()
    embeddings.stacked(next(turn)).backward(gradient)
    rows.step()
