"""How ids are mapped to pointers: stored, packed to a few bits, or hashed.

Each kind says what the kernel `find_and_compose` must know to find its pointers: the first numbers
of its layout, stored pointers as bytes, and hash functions.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64, Integer, UInt8
from torch import Tensor

from outsize.kernels.arrays import array, empty

_MOST_BUCKETS = 1 << 24
_WORDS_PER_HASH = 9
_LEAST_BYTES = 8  # of stored pointers, which are read as words


class StoredPointers(NamedTuple):
    """Pointers that a table stores, one per column.

    Attributes:
        tensor: All pointers.
        first: The first column to use.
        columns: The number of columns; all from `first` on by default.
    """

    tensor: Integer[Tensor, "lines pointers"]
    first: int = 0
    columns: int | None = None

    @property
    def num_columns(self) -> int:
        """Number of columns to use."""
        every = self.tensor.shape[1] - self.first
        return every if self.columns is None else self.columns

    @property
    def is_readable(self) -> bool:
        """Whether the kernel can read them: as bytes, the lowest first."""
        return sys.byteorder == "little"

    def layout(self) -> tuple[int, ...]:
        """Bits, pointers per line, the first to use; what concerns hashes is 0."""
        return 8 * self.tensor.element_size(), self.tensor.shape[1], self.first, 0, 0

    def arrays(self) -> tuple[Any, Any]:
        """The pointers as bytes, and no hash functions."""
        return _bytes_of(self.tensor), _no_words()


class PackedPointers(NamedTuple):
    """Pointers of some bits each, as `outsize.tables.bit_packing` packs them.

    Attributes:
        tensor: All pointers, line after line.
        bits: Bits per pointer.
        num_columns: Pointers per line.
    """

    tensor: UInt8[Tensor, " bytes"]
    bits: int
    num_columns: int

    @property
    def is_readable(self) -> bool:
        """Whether the kernel can read them: as words, the lowest byte first."""
        return sys.byteorder == "little"

    def layout(self) -> tuple[int, ...]:
        """Bits, pointers per line, the first to use; what concerns hashes is 0."""
        return self.bits, self.num_columns, 0, 0, 0

    def arrays(self) -> tuple[Any, Any]:
        """The pointers as bytes, and no hash functions."""
        return _bytes_of(self.tensor), _no_words()


class HashedPointers(NamedTuple):
    """Pointers that are hashes of ids, one function per column.

    Attributes:
        tensor: The functions, from `outsize.hashing.draw_hashes`.
        num_buckets: The number of values.
        offset: What to add to ids before they are hashed.
    """

    tensor: Int64[Tensor, "columns 9"]
    num_buckets: int
    offset: int = 0

    @property
    def num_columns(self) -> int:
        """Number of functions."""
        return self.tensor.shape[0]

    @property
    def is_readable(self) -> bool:
        """Whether the kernel can compute them: by hashes of 32 bits."""
        return 1 <= self.num_buckets <= _MOST_BUCKETS

    def layout(self) -> tuple[int, ...]:
        """What concerns stored pointers is 0; then the offset and the number of buckets."""
        return 0, 0, 0, self.offset, self.num_buckets

    def arrays(self) -> tuple[Any, Any]:
        """No stored pointers, and the hash functions."""
        return _no_bytes(), array(self.tensor.contiguous())


Pointers = StoredPointers | PackedPointers | HashedPointers


def _bytes_of(stored: Integer[Tensor, "..."]) -> Any:
    if stored.numel() < _LEAST_BYTES:
        stored = torch.nn.functional.pad(stored.flatten(), (0, _LEAST_BYTES))
    return array(stored.contiguous()).reshape(-1).view("uint8")


@cache
def _no_bytes() -> Any:
    return empty(0, dtype=torch.uint8)


@cache
def _no_words() -> Any:
    return empty(0, _WORDS_PER_HASH, dtype=torch.int64)
