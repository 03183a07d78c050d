"""Vectors of compositional tables and ROBE in one pass: all columns, and sums of two pieces.

The torch code of the tables is the reference. Look-ups are the same numbers; gradients differ by
the rounding of float32 sums. The compiled path is for float32 on the CPU, up to 2²⁴ hash buckets,
and arrays of less than 2³¹ numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int32, Int64, Integer, UInt8
from torch import Tensor

from outsize.kernels.arrays import array, empty, is_plain, is_plain_float, scratch
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.threads import num_parts, run_parts

_LEAST_IDS = 4096
_LEAST_PER_THREAD = 8192
_MOST_BUCKETS = 1 << 24
_WORDS_PER_HASH = 9
_LEAST_BYTES = 8  # of stored pointers, which are read as words
_BLOCK = 256  # vectors whose pieces are found before they are read
_CHUNKS = 8  # of a batch, whose gradients are summed apart
_GRADIENTS_PER_SUM = 4  # at least, so that sums cost little beside the gradients


class StoredPointers(NamedTuple):
    """Pointers that a table stores, one per column.

    Attributes:
        pointers: All pointers.
        first: The first column to use.
        columns: The number of columns; all from `first` on by default.
    """

    pointers: Integer[Tensor, "lines pointers"]
    first: int = 0
    columns: int | None = None

    @property
    def num_columns(self) -> int:
        """Number of columns to use."""
        every = self.pointers.shape[1] - self.first
        return every if self.columns is None else self.columns


class PackedPointers(NamedTuple):
    """Pointers of some bits each, as `outsize.tables.bit_packing` packs them.

    Attributes:
        packed: All pointers, line after line.
        bits: Bits per pointer.
        num_columns: Pointers per line.
    """

    packed: UInt8[Tensor, " bytes"]
    bits: int
    num_columns: int


class HashedPointers(NamedTuple):
    """Pointers that are hashes of ids, one function per column.

    Attributes:
        hashes: The functions, from `outsize.hashing.draw_hashes`.
        num_buckets: The number of values.
        offset: What to add to ids before they are hashed.
    """

    hashes: Int64[Tensor, "columns 9"]
    num_buckets: int
    offset: int = 0

    @property
    def num_columns(self) -> int:
        """Number of functions."""
        return self.hashes.shape[0]


Pointers = StoredPointers | PackedPointers | HashedPointers


class Source(NamedTuple):
    """Where one piece of every column of a vector is.

    Piece j begins at `pointer · stride + starts[j]`.

    Attributes:
        pointers: How ids are mapped to pointers.
        stride: Numbers between the pieces of neighbouring pointers.
        starts: Start of each column's pieces.
    """

    pointers: Pointers
    stride: int
    starts: tuple[int, ...]


def composed(
    weight: Float[Tensor, "..."],
    ids: Int64[Tensor, " n"],
    widths: tuple[int, ...],
    sources: Sequence[Source],
    *,
    lines: Int64[Tensor, " n"] | None = None,
    signed: bool = False,
) -> Float[Tensor, "n dim"] | None:
    """The vectors of ids from an array of pieces; `None` if the caller must use torch.

    Args:
        weight: The array; its shape does not matter.
        ids: The ids.
        widths: The width of each column.
        sources: One or two sources, whose pieces are added.
        lines: The line of each id's stored pointers; the id itself by default.
        signed: Multiply each piece by the sign that its hash function gives; for one source.
    """
    lines = ids if lines is None else lines
    if not (  # first: a trace has no fixed sizes
        is_plain(ids, lines, *(_tensor(source.pointers) for source in sources))
        and is_worthwhile(ids.shape[0], _LEAST_IDS)
        and weight.numel() < 1 << 31
        and is_plain_float(weight)
        and all(_is_readable(source.pointers) for source in sources)
    ):
        return None
    if compiled("compositional.pieces_numba") is None:
        return None
    num_pieces = len(sources) * len(widths)
    num_blocks = -(-ids.shape[0] // _BLOCK)
    starts = torch.empty(num_blocks, num_pieces, _BLOCK, dtype=torch.int32)
    pieces = Pieces(ids.shape[0], starts, widths)
    found = _Ids(ids.contiguous(), lines.contiguous(), sources, signed)
    vectors: Tensor = _Compose.apply(weight, pieces, found)
    return vectors


@dataclass(frozen=True)
class Pieces:
    """Where the pieces of each vector begin.

    Attributes:
        num: The number of vectors.
        starts: Per block of vectors, source and column, where the pieces begin; the complement of
            that for a sign of −1.
        widths: The widths of the columns of a vector.
    """

    num: int
    starts: Int32[Tensor, "blocks pieces block"]
    widths: tuple[int, ...]

    def arrays(self) -> tuple[Any, Any]:
        """The starts, and the edges of the columns, for kernels."""
        return array(self.starts), _edges(self.widths)

    def num_parts(self) -> int:
        """Number of threads to use."""
        return num_parts(self.num, _LEAST_PER_THREAD)


class _Ids(NamedTuple):
    """Ids, and how their pieces are found."""

    ids: Int64[Tensor, " n"]
    lines: Int64[Tensor, " n"]
    sources: Sequence[Source]
    signed: bool

    def arrays(self) -> tuple[Any, ...]:
        """The arguments of the kernel `find_and_compose` from `ids` to `signed`."""
        pointers = [source.pointers for source in self.sources]
        layouts = _layouts(tuple(map(_layout, self.sources)))
        packed, words = [_packed(p) for p in pointers], [_words(p) for p in pointers]
        ids, lines = array(self.ids), array(self.lines)
        return ids, lines, packed[0], packed[-1], words[0], words[-1], layouts, self.signed


class _Compose(torch.autograd.Function):
    """Vectors from pieces; its gradient is `_Decompose`, whose gradient is `_Compose` again."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, pieces: Pieces, ids: _Ids | None) -> Tensor:
        """With `ids`, the same pass finds their pieces."""
        ctx.pieces, ctx.shape = pieces, weight.shape
        kernels = compiled("compositional.pieces_numba")
        out = torch.empty(pieces.num, sum(pieces.widths))
        flat, parts = array(weight).reshape(-1), pieces.num_parts()
        given = (*pieces.arrays(), array(out))
        if ids is None:
            run_parts(kernels.compose, parts, flat, *given)
        else:
            run_parts(kernels.find_and_compose, parts, flat, *ids.arrays(), *given)
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
        most = gradients.numel() // (_GRADIENTS_PER_SUM * max(size, 1))
        num_chunks = max(1, min(_CHUNKS, most))
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


def _tensor(pointers: Pointers) -> Tensor:
    if isinstance(pointers, HashedPointers):
        return pointers.hashes
    return pointers.packed if isinstance(pointers, PackedPointers) else pointers.pointers


def _is_readable(pointers: Pointers) -> bool:
    """Whether the kernel can find them; stored ones are read as bytes, the lowest first."""
    if isinstance(pointers, HashedPointers):
        return 1 <= pointers.num_buckets <= _MOST_BUCKETS
    return sys.byteorder == "little"


def _layout(source: Source) -> tuple[int, ...]:
    """How the kernel finds the pieces of a source; see `find_and_compose`."""
    pointers = source.pointers
    if isinstance(pointers, HashedPointers):
        how = (0, 0, 0, pointers.offset, pointers.num_buckets)
    elif isinstance(pointers, PackedPointers):
        how = (pointers.bits, pointers.num_columns, 0, 0, 0)
    else:
        stored = pointers.pointers
        how = (8 * stored.element_size(), stored.shape[1], pointers.first, 0, 0)
    return (*how, source.stride, *source.starts)


def _packed(pointers: Pointers) -> Any:
    """Stored pointers as bytes."""
    if isinstance(pointers, HashedPointers):
        return _no_bytes()
    stored = pointers.packed if isinstance(pointers, PackedPointers) else pointers.pointers
    flat = stored.contiguous().view(-1).view(torch.uint8)
    if flat.shape[0] < _LEAST_BYTES:
        flat = torch.nn.functional.pad(flat, (0, _LEAST_BYTES))
    return array(flat)


def _words(pointers: Pointers) -> Any:
    """Hash functions."""
    if isinstance(pointers, HashedPointers):
        return array(pointers.hashes.contiguous())
    return _no_words()


@cache
def _no_bytes() -> Any:
    return empty(0, dtype=torch.uint8)


@cache
def _no_words() -> Any:
    return empty(0, _WORDS_PER_HASH, dtype=torch.int64)


@lru_cache(1 << 10)
def _layouts(layouts: tuple[tuple[int, ...], ...]) -> Any:
    return array(torch.tensor(layouts))


@lru_cache(1 << 10)
def _edges(widths: tuple[int, ...]) -> Any:
    return array(torch.tensor([0, *accumulate(widths)]))
