"""Initial parameters of compressed tables, drawn in the same way as the rows of a full table."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from outsize.hashing import derive_seed
from outsize.initialization import fill_initial_rows
from outsize.spec import Init, TableSpec


def fresh_weight(
    spec: TableSpec, num_rows: int, dim: int, std: float, seed: int, part: str = "weight"
) -> nn.Parameter:
    """A `(num_rows, dim)` parameter with the dtype and distribution of a table's spec.

    Args:
        spec: The table it belongs to.
        num_rows: Its number of rows.
        dim: Its number of columns.
        std: Standard deviation of its values.
        seed: The table's seed.
        part: The name of the parameter; each parameter of a table has its own random draws.
    """
    weight = torch.empty(num_rows, dim, dtype=spec.dtype)
    init = Init(spec.init.distribution, std)
    shape = replace(spec, num_rows=num_rows, dim=dim, init=init)
    fill_initial_rows(weight, shape, derive_seed(seed, "table", part))
    return nn.Parameter(weight)
