"""Product quantization of a trained table (Jégou et al. 2011).

Each column of the vectors is clustered by k-means; an id keeps pointers to its centroids. It
compresses after training, so the full table must fit once; what it gets is the yardstick for
pointers that are learned during training.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor, nn

from outsize.contracts import EmbeddingTable
from outsize.errors import ConfigError
from outsize.spec import Budget, TableSpec
from outsize.tables.columns import (
    columns_of,
    gather_columns,
    stack_columns,
    unstack_columns,
)
from outsize.tables.pointers import pointer_type, unpack
from outsize.tables.reclustering import (
    ITERATIONS,
    fit_codes,
    nearest_pointers,
)


class QuantizedTable(EmbeddingTable):
    """Vectors put together from codes that pointers choose; both are found by `quantize`.

    The codes are parameters and may be trained further; the pointers stay.

    Args:
        spec: The table.
        codes: Centroids, a column of each in each column.
        pointers: For each id and column the code it has, packed in the smallest type.
    """

    can_encode = True

    def __init__(
        self,
        spec: TableSpec,
        codes: Float[Tensor, "codes dim"],
        pointers: Integer[Tensor, "num_rows columns"],
    ) -> None:
        super().__init__(spec)
        self.weight = nn.Parameter(codes.to(spec.dtype))
        self.register_buffer("pointers", pointers)
        self.pointers: Tensor

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> QuantizedTable:
        raise ConfigError("a quantized table is made from a trained one: use outsize.quantize")

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        return gather_columns(self.weight, self.pointers_of(ids))

    def pointers_of(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, "n columns"]:
        """The codes that ids point to."""
        return unpack(self.pointers[ids])

    def encode(self, ids: Int64[Tensor, "*shape"]) -> Integer[Tensor, "*shape columns"]:
        """What can stand in data in the place of ids: their pointers."""
        return self.pointers[ids]

    def decode(self, codes: Integer[Tensor, "*shape columns"]) -> Float[Tensor, "*shape dim"]:
        """The vectors of ids that were encoded."""
        vectors = gather_columns(self.weight, unpack(codes).flatten(0, -2))
        return vectors.view(*codes.shape[:-1], self.spec.dim)


@torch.no_grad()
def quantize(
    table: EmbeddingTable | nn.Embedding,
    columns: int | None = None,
    codes: int = 256,
    *,
    counts: Int64[Tensor, " num_rows"] | None = None,
    iterations: int = ITERATIONS,
    seed: int = 0,
    progress: bool = False,
) -> QuantizedTable:
    """Compress a trained table by product quantization.

    Args:
        table: Any table, or an `nn.Embedding`.
        columns: Pieces that are quantized each on its own; by default 4.
        codes: Codes of each column; fewer ids have a code each.
        counts: How often each id occurs; popular ids are then kept more exactly.
        iterations: Of k-means, at most.
        seed: Seed of the clustering.
        progress: Show a bar on standard error.
    """
    if isinstance(table, EmbeddingTable):
        spec, lookup = table.spec, table.lookup
    else:
        weight = table.weight
        spec = TableSpec("embedding", weight.shape[0], weight.shape[1], dtype=weight.dtype)
        lookup = partial(weight.index_select, 0)
    columns = columns_of(spec, columns)
    if codes < 1:
        raise ConfigError(f"table {spec.name!r}: codes must be >= 1, but got {codes}")
    codes = min(codes, spec.num_rows)
    device = next(table.parameters()).device

    def points_of(ids: Int64[Tensor, " n"]) -> Float[Tensor, "columns n width"]:
        return stack_columns(lookup(ids).float(), columns)

    fitted = fit_codes(
        spec,
        points_of,
        codes,
        counts,
        device=device,
        seed=seed,
        iterations=iterations,
        progress=progress,
    )
    like = torch.empty(spec.num_rows, columns, dtype=pointer_type(codes), device=device)
    pointers = nearest_pointers(points_of, fitted.codes, like)
    return QuantizedTable(spec, unstack_columns(fitted.codes, spec.dim), pointers)
