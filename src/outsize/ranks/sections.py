"""Messages made of sections: tensors of any type, one after the other, as bytes.

Each section is padded to eight bytes, so that it can be read in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import UInt8
from torch import Tensor

_ALIGNMENT = 8


def padded(size: int) -> int:
    """The size of a section of `size` bytes with its padding."""
    return size + -size % _ALIGNMENT


@dataclass(frozen=True)
class Message:
    """Bytes for one receiver, with their number by kind."""

    content: UInt8[Tensor, " bytes"]
    bytes_by_kind: Mapping[str, int]


class MessageWriter:
    """Appends sections to a message."""

    def __init__(self) -> None:
        self._sections: list[Tensor] = []
        self._bytes: dict[str, int] = {}

    def put(self, kind: str, values: Tensor) -> None:
        """Append a section of any type."""
        content = values.contiguous().view(-1).view(torch.uint8)
        size = padded(content.shape[0])
        self._sections.append(content)
        if size > content.shape[0]:
            self._sections.append(content.new_zeros(size - content.shape[0]))
        self._bytes[kind] = self._bytes.get(kind, 0) + size

    def message(self, device: torch.device) -> Message:
        """The message with all sections so far."""
        if not self._sections:
            return Message(torch.empty(0, dtype=torch.uint8, device=device), {})
        return Message(torch.cat(self._sections), self._bytes)


class MessageReader:
    """Reads sections from a message, in order."""

    def __init__(self, content: UInt8[Tensor, " bytes"]) -> None:
        self._content = content
        self._position = 0

    def take(self, num: int, dtype: torch.dtype) -> Tensor:
        """Read the next section, of `num` numbers."""
        size = num * dtype.itemsize
        section = self._content[self._position : self._position + size]
        self._position += padded(size)
        return section.view(dtype)
