"""Initial rows of a table, as a pure function of (seed, table, row, column).

A table therefore starts the same on any number of ranks, whether filled at once or row by row.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.hashing import derive_seed, normal_at, uniform_at
from outsize.spec import TableSpec

_CHUNK_VALUES = 1 << 18  # a few megabytes of int64, which fit in the CPU cache


def initial_rows(spec: TableSpec, ids: Int64[Tensor, " n"], seed: int) -> Float[Tensor, "n dim"]:
    """The initial values of rows `ids` of a table, in float32.

    Args:
        spec: The table; its name is part of the key, so the tables of a model differ.
        ids: Row ids.
        seed: The model's seed.
    """
    std = spec.init.std_for(spec.dim)
    if std == 0.0:
        return torch.zeros(ids.numel(), spec.dim, device=ids.device)
    columns = torch.arange(spec.dim, dtype=torch.int64, device=ids.device)
    keys = ids.unsqueeze(1) * spec.dim + columns + derive_seed(seed, "rows", spec.name)
    if spec.init.distribution == "normal":
        return normal_at(keys) * std
    return (uniform_at(keys) * 2.0 - 1.0) * (std * math.sqrt(3.0))


def fill_initial_rows(
    weight: Float[Tensor, "rows dim"], spec: TableSpec, seed: int, first: int = 0, every: int = 1
) -> None:
    """Fill `weight` in place with the initial rows of a table, in chunks that fit the CPU cache.

    Args:
        weight: To be filled with rows `first`, `first + every`, … of the table.
        spec: The table.
        seed: The model's seed.
        first: The first row; 0 for a whole table.
        every: Stride between rows; 1 for a whole table.
    """
    if weight.is_meta:
        return
    step = max(1, _CHUNK_VALUES // spec.dim)
    with torch.no_grad():
        for start in range(0, weight.shape[0], step):
            stop = min(start + step, weight.shape[0])
            ids = torch.arange(start, stop, dtype=torch.int64, device=weight.device)
            weight[start:stop] = initial_rows(spec, ids * every + first, seed).to(weight.dtype)
