"""The arguments by which the Triton kernels find the pieces of a batch."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Int64
from torch import Tensor

from outsize.kernels.compositional.pointers import HashedPointers, PackedPointers, Pointers


class Places(NamedTuple):
    """Where the pieces of ids are.

    Attributes:
        ids: The ids.
        lines: The line of each id's stored pointers.
        sources: Pointers, and where the piece of column 0 begins that pointer 0 names.
        dim: Numbers of a vector.
        columns: Columns of a vector.
        stride: Numbers between the pieces of neighbouring pointers.
        stepped: Whether columns begin where they do in a vector, not all at the same place.
        signed: Whether hashes give signs.
        size: Numbers of the array.
    """

    ids: Int64[Tensor, " n"]
    lines: Int64[Tensor, " n"]
    sources: tuple[tuple[Pointers, int], ...]
    dim: int
    columns: int
    stride: int
    stepped: bool
    signed: bool
    size: int

    @property
    def num_pieces(self) -> int:
        """Pieces of one source."""
        return self.ids.shape[0] * self.columns

    @property
    def width(self) -> int:
        """The width of the widest column."""
        return -(-self.dim // self.columns)

    @property
    def is_circular(self) -> bool:
        """Whether pieces overlap, and continue at the beginning of the array."""
        return self.stride < self.width

    def arguments(self) -> list[Any]:
        """The arguments of kernels from `ids` to `num_pieces`."""
        found: list[Any] = [self.ids, self.lines]
        for pointers, origin in (self.sources[0], self.sources[-1]):
            _, *layout = pointers.layout()
            found += [pointers.tensor.contiguous(), *layout, origin]
        return [*found, self.num_pieces]

    def constants(self) -> dict[str, Any]:
        """What kernels are compiled for."""
        first, last = self.sources[0][0], self.sources[-1][0]
        return {
            "KIND_1": _kind(first),
            "BITS_1": first.layout()[0],
            "KIND_2": _kind(last),
            "BITS_2": last.layout()[0],
            "SOURCES": len(self.sources),
            "STRIDE": self.stride,
            "STEPPED": self.stepped,
            "SIGNED": self.signed,
            "CIRCULAR": self.is_circular,
            "COLUMNS": self.columns,
            "DIM": self.dim,
        }


def _kind(pointers: Pointers) -> int:
    """The constant of `starts_triton`."""
    if isinstance(pointers, HashedPointers):
        return 0
    return 2 if isinstance(pointers, PackedPointers) else 1
