"""Wire formats: vectors as float32, bfloat16, or int8 with a scale per row.

A sender that adds the rounding error of one gradient to the next one (error feedback, as
`CachedStore` does) loses nothing in the long run. The last gradient has no next one; for it, every
format names a finer format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from outsize.kernels.wire.scaled_bytes import SCALE_BYTES, decode_rows, encode_rows, round_rows
from outsize.registries import require_known


class Wire(ABC):
    """Encodes float32 vectors as bytes."""

    @abstractmethod
    def bytes_per_row(self, dim: int) -> int:
        """Bytes per vector."""

    @abstractmethod
    def encode(self, vectors: Float32[Tensor, "n dim"]) -> UInt8[Tensor, "n bytes"]:
        """Encode vectors as bytes."""

    @abstractmethod
    def decode(self, content: UInt8[Tensor, "n bytes"], dim: int) -> Float32[Tensor, "n dim"]:
        """Decode bytes as vectors."""

    @property
    def number_bytes(self) -> int | None:
        """Bytes per number, if kernels know the format (`whole_numbers_numba`); `None` if not."""
        return None

    @property
    @abstractmethod
    def finer(self) -> Wire:
        """The format for gradients without error feedback."""

    def rounded(self, vectors: Float32[Tensor, "n dim"]) -> Float32[Tensor, "n dim"]:
        """Vectors as the receiver decodes them."""
        return self.decode(self.encode(vectors), vectors.shape[1])


class Float32Wire(Wire):
    """Each number as float32, exact."""

    def bytes_per_row(self, dim: int) -> int:  # noqa: D102
        return 4 * dim

    def encode(self, vectors: Float32[Tensor, "n dim"]) -> UInt8[Tensor, "n bytes"]:  # noqa: D102
        return vectors.contiguous().view(torch.uint8)

    def decode(  # noqa: D102
        self, content: UInt8[Tensor, "n bytes"], dim: int
    ) -> Float32[Tensor, "n dim"]:
        return content.view(torch.float32)

    @property
    def number_bytes(self) -> int | None:  # noqa: D102
        return 4

    @property
    def finer(self) -> Wire:  # noqa: D102
        return self

    def rounded(self, vectors: Float32[Tensor, "n dim"]) -> Float32[Tensor, "n dim"]:  # noqa: D102
        return vectors


class BFloat16Wire(Wire):
    """Each number rounded to bfloat16; relative error at most 1/256."""

    def bytes_per_row(self, dim: int) -> int:  # noqa: D102
        return 2 * dim

    def encode(self, vectors: Float32[Tensor, "n dim"]) -> UInt8[Tensor, "n bytes"]:  # noqa: D102
        return vectors.to(torch.bfloat16).contiguous().view(torch.uint8)

    def decode(  # noqa: D102
        self, content: UInt8[Tensor, "n bytes"], dim: int
    ) -> Float32[Tensor, "n dim"]:
        return content.view(torch.bfloat16).to(torch.float32)

    @property
    def finer(self) -> Wire:  # noqa: D102
        return Float32Wire()


class ScaledWire(Wire):
    """Each vector as a float32 scale and integers.

    Args:
        dtype: Type of the integers: int8 or int16.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def bytes_per_row(self, dim: int) -> int:  # noqa: D102
        return SCALE_BYTES + self._dtype.itemsize * dim

    def encode(self, vectors: Float32[Tensor, "n dim"]) -> UInt8[Tensor, "n bytes"]:  # noqa: D102
        return encode_rows(vectors, self._dtype)

    def decode(  # noqa: D102
        self, content: UInt8[Tensor, "n bytes"], dim: int
    ) -> Float32[Tensor, "n dim"]:
        return decode_rows(content, dim, self._dtype)

    @property
    def number_bytes(self) -> int | None:  # noqa: D102
        return self._dtype.itemsize

    def rounded(self, vectors: Float32[Tensor, "n dim"]) -> Float32[Tensor, "n dim"]:  # noqa: D102
        return round_rows(vectors, self._dtype)

    @property
    def finer(self) -> Wire:
        """16 bits per number; error less than 1/65,000 of the row's largest number."""
        return ScaledWire(torch.int16)


WIRES: dict[str, Wire] = {
    "float32": Float32Wire(),
    "bfloat16": BFloat16Wire(),
    "int8": ScaledWire(torch.int8),
}


def wire_named(name: str) -> Wire:
    """The wire format of that name; the error lists the valid names."""
    require_known("wire", name, WIRES)
    return WIRES[name]


def wire_for(dim: int, wire: Wire) -> Wire:
    """The wire format for rows of this width; rows of width 1 are never rounded."""
    return WIRES["float32"] if dim == 1 else wire
