"""Many texts as two tensors: the bytes of all of them, and the end of each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor


def is_text(value: str) -> bool:
    """Whether a string has a form in UTF-8.

    JSON, and bytes that are no UTF-8 in arguments of a command, become strings that have none.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_bytes(texts: Sequence[str], name: str = "names", ends: str = "ends") -> dict[str, Tensor]:
    """Texts as the bytes of all of them and the end of each, under the given names."""
    encoded = [text.encode() for text in texts]
    places = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    data = np.frombuffer(b"".join(encoded), np.uint8).copy()
    return {name: torch.from_numpy(data), ends: torch.from_numpy(places)}


def from_bytes(data: UInt8[Tensor, " bytes"], ends: Int64[Tensor, " n"]) -> list[str]:
    """The inverse of `as_bytes`.

    Raises:
        ValueError: The ends are not those of texts in these bytes.
        UnicodeDecodeError: A text is not in UTF-8; it is a `ValueError`, too.
    """
    text, places = data.numpy().tobytes(), _edges(data.numpy(), ends.numpy()).tolist()
    return [text[a:b].decode() for a, b in pairwise(places)]


class TextBytes:
    """Texts that are decoded one by one, when they are asked for.

    Args:
        data: The bytes of all texts.
        ends: The end of each.

    Raises:
        ValueError: The ends are not those of texts in these bytes.
    """

    def __init__(self, data: UInt8[Tensor, " bytes"], ends: Int64[Tensor, " n"]) -> None:
        self._data: NDArray[np.uint8] = data.numpy()
        self._ends: NDArray[np.int64] = ends.numpy()
        _edges(self._data, self._ends)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> str:
        first = int(self._ends[row - 1]) if row else 0
        return self._data[first : int(self._ends[row])].tobytes().decode("utf-8", "replace")


def _edges(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each text begins, and the end of the last one."""
    edges = np.concatenate(([0], ends))
    if (np.diff(edges) < 0).any() or edges[-1] != len(data):
        raise ValueError("the ends of texts do not fit their bytes")
    return edges
