"""Fresh parameters of compressed tables, drawn as the rows of a full one are."""

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
    """A `(num_rows, dim)` parameter in the type and from the distribution a table asks for.

    Args:
        spec: The table it belongs to.
        num_rows: Its height.
        dim: Its width.
        std: Standard deviation of its values.
        seed: The table's seed.
        part: Which of the table's parameters; each has draws of its own.
    """
    weight = torch.empty(num_rows, dim, dtype=spec.dtype)
    init = Init(spec.init.distribution, std)
    shape = replace(spec, num_rows=num_rows, dim=dim, init=init)
    fill_initial_rows(weight, shape, derive_seed(seed, "table", part))
    return nn.Parameter(weight)
