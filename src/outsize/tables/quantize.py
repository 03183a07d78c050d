"""Product quantization of a trained table (Jégou et al. 2011).

Each column of the vectors is clustered by k-means, and an id stores pointers to its centroids. The
table is compressed after training, so the full table must fit in memory once. The result is the
benchmark for pointers that are learned during training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from outsize.tables.pointer_table import PointerTable
from outsize.tables.pointers import pack, pointer_type, unpack
from outsize.tables.reclustering import (
    ITERATIONS,
    fit_codes,
    nearest_pointers,
)


class QuantizedTable(PointerTable):
    """A table whose vectors are concatenated from codes; `quantize` finds codes and pointers.

    The codes are parameters and may be trained further; the pointers are fixed. A padding row is
    stored apart from the codes: it keeps its exact value and is not trained, as in `nn.Embedding`.

    Args:
        spec: The table.
        codes: Centroids; row k holds centroid k of every column.
        pointers: The code of each id and column, packed in the smallest type; the padding id has
            the number after the last code.
        padding_id: The id whose vector is `padding_row`, if there is one.
        padding_row: The vector of the padding id.
    """

    def __init__(
        self,
        spec: TableSpec,
        codes: Float[Tensor, "codes dim"],
        pointers: Integer[Tensor, "num_rows columns"],
        padding_id: int | None = None,
        padding_row: Float[Tensor, " dim"] | None = None,
    ) -> None:
        super().__init__(spec)
        if (padding_id is None) != (padding_row is None):
            raise ConfigError(f"table {spec.name!r}: a padding id and its row go together")
        self.weight = nn.Parameter(codes.to(spec.dtype))
        self.padding_id = padding_id
        self.register_buffer("pointers", pointers)
        self.pointers: Tensor
        if padding_row is not None:
            self.register_buffer("padding_row", padding_row.to(spec.dtype))
            self.padding_row: Tensor
        self.renew_version()

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> QuantizedTable:
        raise ConfigError("a quantized table is made from a trained one: use outsize.quantize")

    def settings(self) -> dict[str, Any]:  # noqa: D102
        codes, (_, columns) = self.weight.shape[0], self.pointers.shape
        return {"codes": codes, "columns": columns, "padding_id": self.padding_id}

    @classmethod
    def from_settings(  # noqa: D102
        cls, spec: TableSpec, settings: Mapping[str, Any]
    ) -> QuantizedTable:
        codes, columns = settings["codes"], columns_of(spec, settings["columns"])
        padding_id = settings["padding_id"]
        dtype = pointer_type(codes + (padding_id is not None))
        pointers = torch.zeros(spec.num_rows, columns, dtype=dtype)
        row = None if padding_id is None else torch.zeros(spec.dim)
        return cls(spec, torch.zeros(codes, spec.dim), pointers, padding_id, row)

    @property
    def num_pointers(self) -> int:  # noqa: D102
        return self.pointers.shape[1]

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        return self.vectors_of(self.pointers[ids])

    def pointers_of(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, "n columns"]:
        """The codes that ids point to."""
        return unpack(self.pointers[ids])

    def copy_pointers(self, ids: Int64[Tensor, " n"]) -> Integer[Tensor, "n columns"]:  # noqa: D102
        return self.pointers[ids]

    def vectors_of(self, packed: Integer[Tensor, "n columns"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        pointers = unpack(packed)
        if self.padding_id is None:
            return gather_columns(self.weight, pointers)
        num_codes = self.weight.shape[0]
        is_padding = pointers[:, :1] == num_codes
        vectors = gather_columns(self.weight, pointers.clamp(max=num_codes - 1))
        return torch.where(is_padding, self.padding_row, vectors)

    def materialize(self) -> nn.Embedding:  # noqa: D102
        embedding = super().materialize()
        embedding.padding_idx = self.padding_id
        return embedding


@torch.no_grad()
def quantize(
    table: EmbeddingTable | nn.Embedding,
    columns: int | None = None,
    codes: int = 256,
    *,
    counts: Int64[Tensor, " num_rows"] | None = None,
    iterations: int = ITERATIONS,
    tolerance: float = 0.0,
    seed: int = 0,
    progress: bool = False,
) -> QuantizedTable:
    """Compress a trained table by product quantization.

    Args:
        table: Any table, or an `nn.Embedding`. The padding row of an `nn.Embedding` is kept
            exactly; `sparse` is ignored; `max_norm` and `scale_grad_by_freq` are refused.
        columns: Columns per vector, each quantized on its own; 4 by default.
        codes: Codes per column; a padding row takes one of them. With fewer ids than codes, each
            id has its own.
        counts: How often each id occurs; frequent ids are then represented more exactly.
        iterations: Maximum number of k-means iterations.
        tolerance: k-means also stops when an iteration lowers its error by no more than this share
            of it; 0 to go on until no assignment changes.
        seed: Seed of the clustering.
        progress: Show a progress bar on standard error.
    """
    spec, lookup, padding_id = _source(table)
    columns = columns_of(spec, columns)
    codes = _num_codes(spec, codes, padding_id)
    device = next(table.parameters()).device
    with_padding = codes + (padding_id is not None)
    like = torch.empty(spec.num_rows, columns, dtype=pointer_type(with_padding), device=device)
    if device.type == "meta":  # a shape to load a state dict into
        row = None if padding_id is None else torch.empty(spec.dim, device=device)
        return QuantizedTable(
            spec, torch.empty(codes, spec.dim, device=device), like, padding_id, row
        )
    if padding_id is not None:
        counts = torch.ones(spec.num_rows, dtype=torch.int64) if counts is None else counts.clone()
        if padding_id < len(counts):
            counts[padding_id] = 0

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
        tolerance=tolerance,
    )
    pointers = nearest_pointers(points_of, fitted.codes, like)
    centroids = unstack_columns(fitted.codes, spec.dim)
    if padding_id is None:
        return QuantizedTable(spec, centroids, pointers)
    pointers[padding_id] = pack(torch.tensor(codes), pointers.dtype)
    row = lookup(torch.tensor([padding_id], device=device)).squeeze(0)
    return QuantizedTable(spec, centroids, pointers, padding_id, row)


def _source(
    table: EmbeddingTable | nn.Embedding,
) -> tuple[TableSpec, Callable[[Tensor], Tensor], int | None]:
    """The spec, look-up function and padding id of the table to quantize."""
    if isinstance(table, EmbeddingTable):
        padding_id = table.padding_id if isinstance(table, QuantizedTable) else None
        return table.spec, table.lookup, padding_id
    weight = table.weight
    if table.max_norm is not None:
        raise ConfigError(
            f"quantize: the embedding has max_norm={table.max_norm:g}, which codes cannot keep: "
            "scale its rows down once and set max_norm to None"
        )
    if table.scale_grad_by_freq:
        raise ConfigError(
            "quantize: the embedding has scale_grad_by_freq, which codes that ids share cannot "
            "keep: set it to False"
        )
    spec = TableSpec("embedding", weight.shape[0], weight.shape[1], dtype=weight.dtype)
    return spec, partial(weight.index_select, 0), table.padding_idx


def _num_codes(spec: TableSpec, wanted: int, padding_id: int | None) -> int:
    """The number of codes to fit per column; a padding row takes the place of one."""
    if wanted < 1:
        raise ConfigError(f"table {spec.name!r}: codes must be >= 1, but got {wanted}")
    if padding_id is None:
        return min(wanted, spec.num_rows)
    if wanted < 2 or spec.num_rows < 2:
        raise ConfigError(
            f"table {spec.name!r}: its padding row takes one code, so codes and rows must be >= 2, "
            f"but got {wanted} and {spec.num_rows}"
        )
    return min(wanted, spec.num_rows) - 1
