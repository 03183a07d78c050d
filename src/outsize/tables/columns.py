"""Vectors concatenated from columns: column j of a vector comes from the row that pointer j names.

A vector of width `dim` has `c` columns of about `dim / c` numbers each. A table of k rows can
represent k^c different vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.errors import ConfigError
from outsize.kernels.arrays import is_untraced
from outsize.kernels.compositional.pieces import Source, composed
from outsize.kernels.compositional.pointers import Pointers
from outsize.spec import TableSpec

_DEFAULT_COLUMNS = 4


def columns_of(spec: TableSpec, wanted: int | None) -> int:
    """The number of columns: as wanted, by default 4, or `dim` if that is smaller."""
    columns = min(_DEFAULT_COLUMNS, spec.dim) if wanted is None else wanted
    if not 1 <= columns <= spec.dim:
        raise ConfigError(
            f"table {spec.name!r}: columns must be between 1 and its dim of {spec.dim}, "
            f"but got {columns}"
        )
    return columns


def column_widths(dim: int, columns: int) -> list[int]:
    """The widths of the columns in order; they differ by at most 1, wider ones first."""
    return [dim // columns + (j < dim % columns) for j in range(columns)]


def gather_pieces(
    weight: Float[Tensor, "rows dim"], pieces: Int64[Tensor, "n columns"]
) -> Float[Tensor, "n dim"]:
    """Gather vectors: column j of vector i is `pieces[i, j]`, if rows are cut into equal pieces."""
    dim = weight.shape[1]
    width = dim // pieces.shape[1]
    return weight.view(-1, width).index_select(0, pieces.flatten()).view(-1, dim)


def gather_columns(
    weight: Float[Tensor, "rows dim"], pointers: Int64[Tensor, "n columns"]
) -> Float[Tensor, "n dim"]:
    """Gather vectors: column j of vector i is column j of row `pointers[i, j]`."""
    dim, columns = weight.shape[1], pointers.shape[1]
    if dim % columns == 0:
        return gather_pieces(
            weight, pointers * columns + torch.arange(columns, device=pointers.device)
        )
    widths = enumerate(column_widths(dim, columns))
    column_of = [j for j, width in widths for _ in range(width)]
    return weight.gather(
        0, pointers.index_select(1, torch.tensor(column_of, device=pointers.device))
    )


def composed_columns(
    weight: Float[Tensor, "rows dim"],
    ids: Int64[Tensor, " n"],
    pointers: Sequence[Pointers],
    first_rows: Sequence[int],
    *,
    lines: Int64[Tensor, " n"] | None = None,
    pooled: bool = False,
) -> Float[Tensor, "n dim"] | None:
    """Vectors as sums of what `gather_columns` returns for each source of pointers, in one pass.

    `None` if there is no compiled kernel for this case, and the caller must gather by torch.

    Args:
        weight: The stored rows.
        ids: The ids.
        pointers: One or two sources of pointers.
        first_rows: For each source, the row that pointer 0 names (the piece, if pooled).
        lines: The line of each id's stored pointers; the id itself by default.
        pooled: Pointers name pieces of rows, as for `gather_pieces`, not rows.
    """
    if not is_untraced(ids):  # first: torch.compile cannot trace what is cached below
        return None
    dim, columns = weight.shape[1], pointers[0].num_columns
    widths = _widths(dim, columns)
    stride = widths[0] if pooled else dim
    sources = [
        Source(source, stride, _starts(dim, columns, first, pooled))
        for source, first in zip(pointers, first_rows, strict=True)
    ]
    return composed(weight, ids, widths, sources, lines=lines)


@lru_cache(1 << 10)
def _widths(dim: int, columns: int) -> tuple[int, ...]:
    return tuple(column_widths(dim, columns))


@lru_cache(1 << 10)
def _starts(dim: int, columns: int, first: int, pooled: bool) -> tuple[int, ...]:
    """Where the piece of each column begins that pointer 0 names."""
    widths = _widths(dim, columns)
    if pooled:
        return (first * widths[0],) * columns
    return tuple(first * dim + sum(widths[:j]) for j in range(columns))


def stack_columns(
    vectors: Float[Tensor, "n dim"], columns: int
) -> Float[Tensor, "columns n width"]:
    """Split vectors into columns and stack them; narrower columns are padded with zeros."""
    widths = column_widths(vectors.shape[1], columns)
    pieces = vectors.split(widths, dim=1)
    return torch.stack([F.pad(piece, (0, widths[0] - piece.shape[1])) for piece in pieces])


def unstack_columns(stacked: Float[Tensor, "columns n width"], dim: int) -> Float[Tensor, "n dim"]:
    """The inverse of `stack_columns`."""
    widths = column_widths(dim, stacked.shape[0])
    return torch.cat([piece[:, :width] for piece, width in zip(stacked, widths, strict=True)], 1)
