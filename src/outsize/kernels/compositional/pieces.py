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
from jaxtyping import Float, Int32, Int64, Integer
from torch import Tensor

from outsize.kernels.arrays import array, empty, is_plain, is_plain_float, scratch
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.threads import num_parts, run_parts

_LEAST_IDS = 4096
_LEAST_PER_THREAD = 8192
_MOST_BUCKETS = 1 << 24
_WORDS_PER_HASH = 9
_BLOCK = 256  # vectors whose pieces are found before they are read
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
    signed: bool = False,
) -> Float[Tensor, "n dim"] | None:
    """The vectors of ids from an array of pieces; `None` if the caller must use torch.

    Args:
        weight: The array; its shape does not matter.
        ids: The ids, or the lines of their stored pointers.
        widths: The width of each column.
        sources: One or two sources, whose pieces are added.
        signed: Multiply each piece by the sign that its hash function gives; for one source.
    """
    if not (
        is_plain(ids, *(_tensor(source) for source in sources))  # first: a trace has no fixed sizes
        and is_worthwhile(ids.shape[0], _LEAST_IDS)
        and weight.numel() < 1 << 31
        and is_plain_float(weight)
        and all(_is_narrow(source) for source in sources)
    ):
        return None
    if compiled("compositional.pieces_numba") is None:
        return None
    num_pieces = len(sources) * len(widths)
    num_blocks = -(-ids.shape[0] // _BLOCK)
    starts = torch.empty(num_blocks, num_pieces, _BLOCK, dtype=torch.int32)
    pieces = Pieces(ids.shape[0], starts, torch.tensor([0, *accumulate(widths)]))
    vectors: Tensor = _Compose.apply(weight, pieces, _Ids(ids.contiguous(), sources, signed))
    return vectors


@dataclass(frozen=True)
class Pieces:
    """Where the pieces of each vector begin.

    Attributes:
        num: The number of vectors.
        starts: Per block of vectors, source and column, where the pieces begin; the complement of
            that for a sign of −1.
        edges: The edges of the columns of a vector.
    """

    num: int
    starts: Int32[Tensor, "blocks pieces block"]
    edges: Int64[Tensor, " edges"]

    def arrays(self) -> tuple[Any, Any]:
        """Both as arrays."""
        return array(self.starts), array(self.edges)

    def num_parts(self) -> int:
        """Number of threads to use."""
        return num_parts(self.num, _LEAST_PER_THREAD)


class _Ids(NamedTuple):
    """Ids, and how their pieces are found."""

    ids: Int64[Tensor, " n"]
    sources: Sequence[Source]
    signed: bool

    def arrays(self) -> tuple[Any, ...]:
        """The arguments of the kernel `find_and_compose` from `ids` to `signed`."""
        layouts = torch.tensor([_layout(source) for source in self.sources])
        packed, words = zip(*(_packed_and_words(source) for source in self.sources), strict=True)
        all_words = array(words[0] if len(words) == 1 else torch.cat(words))
        return array(self.ids), packed[0], packed[-1], all_words, array(layouts), self.signed


class _Compose(torch.autograd.Function):
    """Vectors from pieces; its gradient is `_Decompose`, whose gradient is `_Compose` again."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, pieces: Pieces, ids: _Ids | None) -> Tensor:
        """With `ids`, the same pass finds their pieces."""
        ctx.pieces, ctx.shape = pieces, weight.shape
        kernels = compiled("compositional.pieces_numba")
        starts, edges = pieces.arrays()
        out = torch.empty(pieces.num, int(edges[-1]))
        flat, parts = array(weight).reshape(-1), pieces.num_parts()
        if ids is None:
            run_parts(kernels.compose, parts, flat, starts, edges, array(out))
        else:
            found = (*ids.arrays(), edges, starts, array(out))
            run_parts(kernels.find_and_compose, parts, flat, *found)
        return out

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Any:
        return _Decompose.apply(gradients.contiguous(), ctx.pieces, ctx.shape), None, None


class _Decompose(torch.autograd.Function):
    """Σ of the gradients of each number of the array."""

    @staticmethod
    def forward(ctx: Any, gradients: Tensor, pieces: Pieces, shape: torch.Size) -> Tensor:
        ctx.pieces = pieces
        kernels = compiled("compositional.pieces_numba")
        size = shape.numel()
        # More sums than one only where they are small beside the batch.
        num_chunks = max(1, min(_CHUNKS, gradients.numel() // max(size, 1)))
        out = torch.empty(size)
        totals = out if num_chunks == 1 else scratch("composed_totals", num_chunks * size)
        totals = totals.view(num_chunks, size)
        parts = min(num_chunks, pieces.num_parts())
        run_parts(kernels.add_pieces, parts, array(gradients), *pieces.arrays(), array(totals))
        if num_chunks > 1:
            run_parts(kernels.sum_chunks, num_parts(size, 1 << 14), array(totals), array(out))
        return out.view(shape)

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> Any:
        return _Compose.apply(weight.contiguous(), ctx.pieces, None), None, None


def _layout(source: Source) -> list[int]:
    """How the kernel finds the pieces of a source; see `find_and_compose`."""
    pointers = source.pointers
    if isinstance(pointers, HashedPointers):
        return [0, 0, 0, pointers.num_buckets, source.stride, *source.starts]
    num_bytes, width = pointers.pointers.element_size(), pointers.pointers.shape[1]
    return [num_bytes, width, pointers.first, 0, source.stride, *source.starts]


def _packed_and_words(source: Source) -> tuple[Any, Tensor]:
    """Stored pointers as bytes, and hash functions; what a source does not have is blank."""
    pointers = source.pointers
    if isinstance(pointers, HashedPointers):
        return empty(0, dtype=torch.uint8), pointers.hashes.contiguous()
    packed = array(pointers.pointers.contiguous()).reshape(-1).view("uint8")
    return packed, torch.zeros(len(source.starts), _WORDS_PER_HASH, dtype=torch.int64)


def _tensor(source: Source) -> Tensor:
    pointers = source.pointers
    return pointers.hashes if isinstance(pointers, HashedPointers) else pointers.pointers


def _is_narrow(source: Source) -> bool:
    pointers = source.pointers
    return isinstance(pointers, StoredPointers) or 1 <= pointers.num_buckets <= _MOST_BUCKETS
