"""Vectors put together from columns: stretch j of a vector comes from the row pointer j names.

A vector of width `dim` has `c` columns, each `dim / c` wide (or as nearly so as possible), and a
table of k rows can make k^c different ones.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.errors import ConfigError
from outsize.spec import TableSpec

DEFAULT_COLUMNS = 4


def require_columns(spec: TableSpec, columns: int) -> None:
    """Refuse a number of columns that a width cannot have."""
    if not 1 <= columns <= spec.dim:
        raise ConfigError(
            f"table {spec.name!r}: columns must be between 1 and its dim of {spec.dim}, "
            f"but got {columns}"
        )


def column_widths(dim: int, columns: int) -> list[int]:
    """The widths of columns in order; they differ by 1 at most, the wider ones first."""
    return [dim // columns + (j < dim % columns) for j in range(columns)]


def gather_columns(
    weight: Float[Tensor, "rows dim"], pointers: Int64[Tensor, "n columns"]
) -> Float[Tensor, "n dim"]:
    """Column j of vector i is column j of row `pointers[i, j]`."""
    num_rows, dim = weight.shape
    columns = pointers.shape[1]
    if dim % columns == 0:
        places = pointers * columns + torch.arange(columns, device=pointers.device)
        pieces = weight.view(num_rows * columns, dim // columns)
        return pieces.index_select(0, places.flatten()).view(-1, dim)
    widths = torch.tensor(column_widths(dim, columns), device=pointers.device)
    return weight.gather(0, pointers.repeat_interleave(widths, dim=1, output_size=dim))
