"""Vectors of compositional tables and ROBE in one pass: all columns, and sums of two pieces.

The torch code of the tables is the reference. Look-ups are the same numbers; gradients differ by
the rounding of float32 sums. The compiled path is for float32 on the CPU, up to 2²⁴ hash buckets,
and arrays of less than 2³¹ numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor

from outsize.kernels.arrays import array, empty, is_plain, is_plain_float
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.threads import num_parts, run_parts

_LEAST_IDS = 4096
_LEAST_PER_THREAD = 2048
_MOST_BUCKETS = 1 << 24
_CHUNKS = 8  # of a batch, whose gradients are summed apart


class StoredPointers(NamedTuple):
    """Pointers that a table stores, one per column.

    Attributes:
        pointers: All pointers, packed.
        first: The first column to use.
        columns: The number of columns; all from `first` on by default.
    """

    pointers: Integer[Tensor, "lines pointers"]
    first: int = 0
    columns: int | None = None


def num_columns(stored: StoredPointers) -> int:
    """Number of columns to use."""
    every = stored.pointers.shape[1] - stored.first
    return every if stored.columns is None else stored.columns


class HashedPointers(NamedTuple):
    """Pointers that are hashes of ids, one function per column.

    Attributes:
        hashes: The functions, from `outsize.hashing.draw_hashes`.
        num_buckets: The number of values.
    """

    hashes: Int64[Tensor, "columns 9"]
    num_buckets: int


class Source(NamedTuple):
    """Where one piece of every column of a vector is.

    Piece j begins at `pointer · stride + starts[j]`.

    Attributes:
        pointers: How ids are mapped to pointers.
        stride: Numbers between the pieces of neighbouring pointers.
        starts: Start of each column's pieces.
    """

    pointers: StoredPointers | HashedPointers
    stride: int
    starts: Sequence[int]


def composed(
    weight: Float[Tensor, "..."],
    ids: Int64[Tensor, " n"],
    widths: Sequence[int],
    sources: Sequence[Source],
    signs: Int64[Tensor, "columns 9"] | None = None,
) -> Float[Tensor, "n dim"] | None:
    """The vectors of ids from an array of pieces; `None` if the caller must use torch.

    Args:
        weight: The array; its shape does not matter.
        ids: The ids, or the lines of their stored pointers.
        widths: The width of each column.
        sources: One or two sources, whose pieces are added.
        signs: Hash functions of the sign of each piece, for one source.
    """
    if not (
        is_plain(ids, *(_tensor(source) for source in sources))  # first: a trace has no fixed sizes
        and is_worthwhile(ids.shape[0], _LEAST_IDS)
        and weight.numel() < 1 << 31
        and is_plain_float(weight)
        and all(_is_narrow(source) for source in sources)
    ):
        return None
    kernels = compiled("compositional.pieces_numba")
    if kernels is None:
        return None
    found = [_find(kernels, ids, source) for source in sources]
    none = torch.empty(0, len(widths), dtype=torch.int32)
    second = found[1] if len(found) > 1 else none
    turned = none if signs is None else _find_signs(kernels, ids, signs)
    edges = torch.tensor([0, *accumulate(widths)])
    vectors: Tensor = _Compose.apply(weight, Pieces(found[0], second, turned, edges))
    return vectors


@dataclass(frozen=True)
class Pieces:
    """Where the pieces of each vector begin, their signs, and the edges of columns."""

    first: Tensor
    second: Tensor
    signs: Tensor
    edges: Tensor

    def arrays(self) -> tuple[Any, ...]:
        """All of it as arrays."""
        return array(self.first), array(self.second), array(self.signs), array(self.edges)

    def num_parts(self) -> int:
        """Number of threads to use."""
        return num_parts(self.first.shape[0], _LEAST_PER_THREAD)


class _Compose(torch.autograd.Function):
    """Vectors from pieces; its gradient is `_Decompose`, whose gradient is `_Compose` again."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, pieces: Pieces) -> Tensor:
        ctx.pieces, ctx.shape = pieces, weight.shape
        kernels = compiled("compositional.pieces_numba")
        out = torch.empty(pieces.first.shape[0], int(pieces.edges[-1]))
        flat = array(weight).reshape(-1)
        run_parts(kernels.compose, pieces.num_parts(), flat, *pieces.arrays(), array(out))
        return out

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Any:
        return _Decompose.apply(gradients.contiguous(), ctx.pieces, ctx.shape), None


class _Decompose(torch.autograd.Function):
    """Σ of the gradients of each number of the array."""

    @staticmethod
    def forward(ctx: Any, gradients: Tensor, pieces: Pieces, shape: torch.Size) -> Tensor:
        ctx.pieces = pieces
        kernels = compiled("compositional.pieces_numba")
        size = shape.numel()
        # More sums than one only where they are small beside the batch.
        num_chunks = max(1, min(_CHUNKS, gradients.numel() // max(size, 1)))
        totals = torch.empty(num_chunks, size)
        parts = min(num_chunks, pieces.num_parts())
        run_parts(kernels.add_pieces, parts, array(gradients), *pieces.arrays(), array(totals))
        if num_chunks == 1:
            return totals.view(shape)
        out = torch.empty(size)
        run_parts(kernels.sum_chunks, num_parts(size, 1 << 14), array(totals), array(out))
        return out.view(shape)

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> Any:
        return _Compose.apply(weight.contiguous(), ctx.pieces), None, None


def _find(kernels: Any, ids: Tensor, source: Source) -> Tensor:
    pointers, lines = source.pointers, array(ids.contiguous())
    starts = torch.empty(ids.shape[0], len(source.starts), dtype=torch.int32)
    parts = num_parts(ids.shape[0], _LEAST_PER_THREAD)
    places = (array(torch.tensor(source.starts)), source.stride, array(starts))
    if isinstance(pointers, HashedPointers):
        words = array(pointers.hashes.contiguous())
        run_parts(kernels.find_hashed, parts, lines, words, pointers.num_buckets, *places)
    else:
        num_bytes = pointers.pointers.element_size()
        views = {1: "uint8", 2: "uint16", 4: "uint32", 8: "int64"}
        packed = array(pointers.pointers.contiguous()).view(views[num_bytes])
        none = {size: empty(0, 1, dtype=torch.int64).astype(kind) for size, kind in views.items()}
        arrays = [packed if size == num_bytes else none[size] for size in views]
        stored = (num_bytes, *arrays, pointers.first)
        run_parts(kernels.find_stored, parts, lines, *stored, *places)
    return starts


def _find_signs(kernels: Any, ids: Tensor, hashes: Tensor) -> Tensor:
    signs = torch.empty(ids.shape[0], hashes.shape[0], dtype=torch.int32)
    parts = num_parts(ids.shape[0], _LEAST_PER_THREAD)
    words = array(hashes.contiguous())
    run_parts(kernels.find_signs, parts, array(ids.contiguous()), words, array(signs))
    return signs


def _tensor(source: Source) -> Tensor:
    pointers = source.pointers
    return pointers.hashes if isinstance(pointers, HashedPointers) else pointers.pointers


def _is_narrow(source: Source) -> bool:
    pointers = source.pointers
    return isinstance(pointers, StoredPointers) or 1 <= pointers.num_buckets <= _MOST_BUCKETS
