"""Wire formats: vectors as float32, bfloat16, or int8 with a scale per row.

A sender that adds the rounding error of one gradient to the next (error feedback, as `CachedStore`
does) loses nothing in the long run. For a last message, which has no next, every format names a
finer one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from outsize.errors import ConfigError
from outsize.kernels.rows.scaled import scale_rows, unscale_rows

_SCALE_BYTES = 4


class Wire(ABC):
    """One way to write vectors of float32 as bytes."""

    @abstractmethod
    def bytes_per_row(self, dim: int) -> int:
        """How many bytes a vector takes."""

    @abstractmethod
    def encode(self, vectors: Float32[Tensor, "n dim"]) -> UInt8[Tensor, "n bytes"]:
        """Vectors as bytes."""

    @abstractmethod
    def decode(self, content: UInt8[Tensor, "n bytes"], dim: int) -> Float32[Tensor, "n dim"]:
        """What the bytes say."""

    @property
    @abstractmethod
    def finer(self) -> Wire:
        """What to write in where nobody keeps what rounding leaves out."""

    def rounded(self, vectors: Float32[Tensor, "n dim"]) -> Float32[Tensor, "n dim"]:
        """Vectors as they arrive."""
        return self.decode(self.encode(vectors), vectors.shape[1])


class Float32Wire(Wire):
    """Numbers as they are."""

    def bytes_per_row(self, dim: int) -> int:  # noqa: D102
        return 4 * dim

    def encode(self, vectors: Float32[Tensor, "n dim"]) -> UInt8[Tensor, "n bytes"]:  # noqa: D102
        return vectors.contiguous().view(torch.uint8)

    def decode(  # noqa: D102
        self, content: UInt8[Tensor, "n bytes"], dim: int
    ) -> Float32[Tensor, "n dim"]:
        return content.view(torch.float32)

    @property
    def finer(self) -> Wire:  # noqa: D102
        return self

    def rounded(self, vectors: Float32[Tensor, "n dim"]) -> Float32[Tensor, "n dim"]:  # noqa: D102
        return vectors


class BFloat16Wire(Wire):
    """Each number rounded to bfloat16: off by at most a 256th of itself."""

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
    """Each vector as a float32 scale and whole numbers.

    Args:
        dtype: Of the numbers: int8 or int16.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def bytes_per_row(self, dim: int) -> int:  # noqa: D102
        return _SCALE_BYTES + self._dtype.itemsize * dim

    def encode(self, vectors: Float32[Tensor, "n dim"]) -> UInt8[Tensor, "n bytes"]:  # noqa: D102
        numbers, scales = scale_rows(vectors, self._dtype)
        content = vectors.new_empty(
            len(vectors), self.bytes_per_row(vectors.shape[1]), dtype=torch.uint8
        )
        content[:, :_SCALE_BYTES] = scales.view(torch.uint8).view(-1, _SCALE_BYTES)
        content[:, _SCALE_BYTES:].view(self._dtype).copy_(numbers)
        return content

    def decode(  # noqa: D102
        self, content: UInt8[Tensor, "n bytes"], dim: int
    ) -> Float32[Tensor, "n dim"]:
        scales = content[:, :_SCALE_BYTES].reshape(-1).view(torch.float32)
        return unscale_rows(content[:, _SCALE_BYTES:].view(self._dtype), scales)

    @property
    def finer(self) -> Wire:
        """16 bits a number: off by less than a 65,000th of the row's largest."""
        return ScaledWire(torch.int16)


WIRES: dict[str, Wire] = {
    "float32": Float32Wire(),
    "bfloat16": BFloat16Wire(),
    "int8": ScaledWire(torch.int8),
}


def wire_named(name: str) -> Wire:
    """The wire format of that name, or an error that names those there are."""
    if name not in WIRES:
        raise ConfigError(f"wire must be one of {', '.join(WIRES)}, but got {name!r}")
    return WIRES[name]


def wire_for(dim: int, wire: Wire) -> Wire:
    """How rows and gradients of this width travel: single numbers are never rounded."""
    return WIRES["float32"] if dim == 1 else wire
