"""Arrays of a graph as files of a folder, memory-mapped.

Mappings are private and reserve no memory: an array is read from the file page by page, and may be
larger than memory.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.interrupts import check_stop

_BLOCK_BYTES = 1 << 24
_PAIRS_PER_BLOCK = 1 << 20
_NO_RESERVE = 0x4000 if sys.platform.startswith("linux") else 0  # MAP_NORESERVE


class ArrayFiles:
    """New arrays: files of a folder, or in memory.

    Args:
        folder: The folder; `None` for memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._mapped: dict[str, int] = {}  # file → number of the mapped array's address

    def new(self, name: str, length: int, dtype: Any) -> NDArray[Any]:
        """An array with any content, which `save` under the same name completes."""
        if self._folder is None or not length:
            return np.empty(length, dtype)
        path = self._folder / name
        with path.open("w+b") as file:
            num_bytes = length * np.dtype(dtype).itemsize
            _reserve(file.fileno(), num_bytes)
            array = np.frombuffer(mmap.mmap(file.fileno(), num_bytes), dtype)
        self._mapped[name] = array.ctypes.data
        return array

    def save(self, name: str, array: NDArray[Any]) -> None:
        """Write an array, if it is not a prefix of the one that `new` made for the name."""
        if self._folder is None:
            return
        path = self._folder / name
        if self._mapped.get(name) == array.ctypes.data and array.flags.c_contiguous:
            os.truncate(path, array.nbytes)
            return
        with path.open("wb") as file:
            flat = np.ascontiguousarray(array).reshape(-1)
            step = max(1, _BLOCK_BYTES // array.itemsize)
            for first in range(0, len(flat), step):
                check_stop()
                file.write(flat[first : first + step].tobytes())

    def pairs(self, name: str, largest: int) -> PairFile:
        """A file of edges that are only needed while a graph is built.

        Args:
            name: Part of its name.
            largest: The largest id.
        """
        dtype = np.int32 if largest <= np.iinfo(np.int32).max else np.int64
        return PairFile(None if self._folder is None else self._folder / f"{name}.pairs", dtype)


class PairFile:
    """Edges in the order they were appended, in a file or in memory.

    Args:
        path: The file; `None` for memory.
        dtype: The type of ids.
    """

    def __init__(self, path: Path | None, dtype: Any) -> None:
        self._path = path
        self._dtype = np.dtype(dtype)
        self._parts: list[NDArray[Any]] = []
        if path is not None:
            path.write_bytes(b"")  # a reader that begins again begins with no edges

    def append(self, sources: NDArray[Any], targets: NDArray[Any]) -> None:
        """Append edges."""
        rows = np.stack((sources, targets), axis=1).astype(self._dtype)
        if self._path is None:
            self._parts.append(rows)
            return
        with self._path.open("ab") as file:
            file.write(rows.tobytes())

    def chunks(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """All edges, in chunks of sources and targets."""
        if self._path is None:
            for rows in self._parts:
                yield rows[:, 0], rows[:, 1]
            return
        with self._path.open("rb") as file:
            while block := file.read(_PAIRS_PER_BLOCK * 2 * self._dtype.itemsize):
                rows = np.frombuffer(block, self._dtype).reshape(-1, 2)
                yield rows[:, 0], rows[:, 1]


def map_array(path: Path, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    """The array of a file. Writes to it, if any, do not reach the file."""
    if not math.prod(shape):
        return np.empty(shape, dtype)
    with path.open("rb") as file:
        content = mmap.mmap(
            file.fileno(), 0, flags=mmap.MAP_PRIVATE | _NO_RESERVE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )  # fmt: skip
    return np.frombuffer(content, dtype, math.prod(shape)).reshape(shape)


def digest_of(array: NDArray[Any]) -> str:
    """The SHA-256 that the file of an array has."""
    digest = hashlib.sha256()
    flat = np.ascontiguousarray(array).reshape(-1)
    step = max(1, _BLOCK_BYTES // array.itemsize)
    for first in range(0, len(flat), step):
        digest.update(flat[first : first + step].data)
    return digest.hexdigest()


def fingerprint(structure: str, digests: Mapping[str, str]) -> str:
    """A fingerprint of a graph, given its description and the digests of its files."""
    digest = hashlib.sha256(structure.encode())
    for name, value in sorted(digests.items()):
        digest.update(f"{name} {value}\n".encode())
    return digest.hexdigest()


def _reserve(file: int, num_bytes: int) -> None:
    """Give a file its size, with space on the disk: a full disk is an error, not a dead process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, num_bytes)
    else:
        os.truncate(file, num_bytes)
