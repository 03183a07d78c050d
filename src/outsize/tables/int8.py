"""Rows of a trained table as 8-bit integers, with a scale per row.

    row ≈ scale · q,   q in −127 … 127,   scale = max |row| / 127

Every number is off by at most half a scale. An offset per row as well would lower the squared error
by a third, which is small already, for 4 more bytes per row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Float32, Int8, Int64
from torch import Tensor, nn

from outsize.contracts import EmbeddingTable
from outsize.errors import ConfigError
from outsize.spec import Budget, TableSpec

_LARGEST = 127
_CHUNK_ROWS = 1 << 16


class Int8Table(EmbeddingTable):
    """A table whose rows are 8-bit integers with a scale per row; rows become float32 on look-up.

    The rows are fixed. Only the scales are parameters.

    Args:
        spec: The table.
        rows: The integers.
        scale: What the integers of each row are multiplied by.
    """

    def __init__(
        self,
        spec: TableSpec,
        rows: Int8[Tensor, "num_rows dim"],
        scale: Float32[Tensor, " num_rows"],
    ) -> None:
        super().__init__(spec)
        if rows.shape != (spec.num_rows, spec.dim) or scale.shape != (spec.num_rows,):
            raise ConfigError(
                f"table {spec.name!r} has {spec.num_rows:,} rows of {spec.dim}, but got rows of "
                f"shape {tuple(rows.shape)} and scales of shape {tuple(scale.shape)}"
            )
        self.register_buffer("rows", rows)
        self.rows: Tensor
        self.scale = nn.Parameter(scale)

    @classmethod
    def from_table(cls, table: EmbeddingTable | nn.Embedding) -> Int8Table:
        """Round the vectors of a trained table, or of an `nn.Embedding`, chunk by chunk."""
        device = next(iter([*table.parameters(), *table.buffers()])).device
        if isinstance(table, EmbeddingTable):
            return cls.from_rows(table.spec, table.lookup, device)
        weight = table.weight
        spec = TableSpec("embedding", weight.shape[0], weight.shape[1])
        return cls.from_rows(spec, partial(weight.index_select, 0), device)

    @classmethod
    @torch.no_grad()
    def from_rows(
        cls,
        spec: TableSpec,
        read: Callable[[Int64[Tensor, " n"]], Float[Tensor, "n dim"]],
        device: torch.device,
    ) -> Int8Table:
        """Round rows that a function reads; never holds more than a chunk of them as floats.

        Args:
            spec: The table.
            read: Ids → their rows.
            device: Where the ids are, and the new table.
        """
        rows = torch.empty(spec.num_rows, spec.dim, dtype=torch.int8, device=device)
        scale = torch.empty(spec.num_rows, device=device)
        if device.type != "meta":
            for ids in torch.arange(spec.num_rows, device=device).split(_CHUNK_ROWS):
                rows[ids], scale[ids] = to_int8(read(ids).float())
        return cls(spec, rows, scale)

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> Int8Table:
        raise ConfigError("an int8 table is made from a trained one: use Int8Table.from_table")

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {}

    @classmethod
    def from_settings(cls, spec: TableSpec, settings: Mapping[str, Any]) -> Int8Table:  # noqa: D102
        rows = torch.zeros(spec.num_rows, spec.dim, dtype=torch.int8)
        return cls(spec, rows, torch.ones(spec.num_rows))

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        scale = self.scale.index_select(0, ids).unsqueeze(1)
        return self.rows.index_select(0, ids).to(scale.dtype) * scale


def to_int8(
    rows: Float32[Tensor, "n dim"],
) -> tuple[Int8[Tensor, "n dim"], Float32[Tensor, " n"]]:
    """The nearest integers of rows, and the scale of each row; NaN and infinity give such a scale.

    A row of zeros, or of numbers too small to divide by, becomes zeros.
    """
    scale = rows.abs().amax(dim=1) / _LARGEST
    scale = torch.where(scale < torch.finfo(scale.dtype).tiny, torch.ones_like(scale), scale)
    integers = (rows / scale.unsqueeze(1)).round().clamp(-_LARGEST, _LARGEST)
    return integers.nan_to_num().to(torch.int8), scale
