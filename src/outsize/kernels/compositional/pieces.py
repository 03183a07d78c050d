"""Vectors of compositional tables and ROBE in one pass: all columns, and sums of two pieces.

The torch code of the tables is the reference. Look-ups are the same numbers; gradients differ by
the rounding of float32 sums. The fast paths, numba's on the CPU for float32 and Triton's on CUDA,
are for up to 2²⁴ hash buckets and arrays of less than 2³¹ numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from outsize.kernels.arrays import array, is_plain, is_plain_float, scratch
from outsize.kernels.available import uses_triton
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.compositional.pointers import Pointers
from outsize.kernels.threads import num_parts, run_parts

_LEAST_IDS = 4096
_LEAST_PER_THREAD = 4096
_BLOCK = 256  # vectors whose pieces are found before they are read
_CHUNKS = 8  # of a batch, whose gradients are summed apart
_MOST_ON_CUDA = (1 << 31) - (1 << 12)  # numbers: kernels look a few thousand further
_GRADIENTS_PER_SUM = 4  # at least, so that sums cost little beside the gradients


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
        sources: One or two sources, whose pieces are added; those of one do not overlap those of
            the other.
        lines: The line of each id's stored pointers; the id itself by default.
        signed: Multiply each piece by the sign that its hash function gives; for one source.
    """
    lines = ids if lines is None else lines
    if uses_triton(weight, ids, lines, *(source.pointers.tensor for source in sources)):
        return _composed_on_cuda(weight, ids, widths, sources, lines, signed)
    if not (  # first: a trace has no fixed sizes
        is_plain(ids, lines, *(source.pointers.tensor for source in sources))
        and is_worthwhile(ids.shape[0], _LEAST_IDS)
        and weight.numel() < 1 << 31
        and is_plain_float(weight)
        and all(source.pointers.is_readable for source in sources)
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


def _composed_on_cuda(
    weight: Float[Tensor, "..."],
    ids: Int64[Tensor, " n"],
    widths: tuple[int, ...],
    sources: Sequence[Source],
    lines: Int64[Tensor, " n"],
    signed: bool,
) -> Float[Tensor, "n dim"] | None:
    if weight.numel() > _MOST_ON_CUDA or not all(source.pointers.is_readable for source in sources):
        return None
    from outsize.kernels.compositional.composed_triton import composed_by_triton

    return composed_by_triton(weight, ids, widths, sources, lines, signed)


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

    @property
    def num_sources(self) -> int:
        """Number of pieces that are added in each column."""
        return self.starts.shape[1] // len(self.widths)

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
        layouts = _layouts(
            tuple((*how.layout(), stride, *starts) for how, stride, starts in self.sources)
        )
        packed, words = self.sources[0].pointers.arrays()
        packed_2, words_2 = self.sources[-1].pointers.arrays()
        ids, lines = array(self.ids), array(self.lines)
        return ids, lines, packed, packed_2, words, words_2, layouts, self.signed


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
        given = gradients.contiguous(), ctx.pieces, ctx.shape
        # A gradient of this gradient is rarely asked for, and takes time to prepare.
        decompose = _Decompose.apply if torch.is_grad_enabled() else _decomposed
        return decompose(*given), None, None


class _Decompose(torch.autograd.Function):
    """Σ of the gradients of each number of the array."""

    @staticmethod
    def forward(ctx: Any, gradients: Tensor, pieces: Pieces, shape: torch.Size) -> Tensor:
        ctx.pieces = pieces
        return _decomposed(gradients, pieces, shape)

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> Any:
        return _Compose.apply(weight.contiguous(), ctx.pieces, None), None, None


def _decomposed(
    gradients: Float[Tensor, "n dim"], pieces: Pieces, shape: torch.Size
) -> Float[Tensor, "..."]:
    """Σ of the gradients of each number of an array of a shape."""
    kernels = compiled("compositional.pieces_numba")
    size = shape.numel()
    most = gradients.numel() // (_GRADIENTS_PER_SUM * max(size, 1))
    num_chunks, num_threads = max(1, min(_CHUNKS, most)), pieces.num_parts()
    gradient = array(gradients), *pieces.arrays()
    if num_chunks == 1:
        out, groups = torch.zeros(size), pieces.num_sources
        totals = array(out.view(1, size))
        run_parts(kernels.add_pieces, min(groups, num_threads), *gradient, groups, totals)
    else:
        out = torch.empty(size)
        totals = array(scratch("composed_totals", num_chunks * size).view(num_chunks, size))
        run_parts(kernels.add_pieces, min(num_chunks, num_threads), *gradient, 1, totals)
        run_parts(kernels.sum_chunks, num_parts(size, 1 << 14), totals, array(out))
    return out.view(shape)


@lru_cache(1 << 10)
def _layouts(layouts: tuple[tuple[int, ...], ...]) -> Any:
    return array(torch.tensor(layouts))


@lru_cache(1 << 10)
def _edges(widths: tuple[int, ...]) -> Any:
    return array(torch.tensor([0, *accumulate(widths)]))
