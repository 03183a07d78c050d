"""Arrays and sparse matrices of `.npz` files, in chunks, and without unpickling anything."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.graphs.csr import Pairs
from outsize.errors import DataError, one_line

_NUMBERS_PER_CHUNK = 1 << 20
_DAMAGE = (OSError, EOFError, ValueError, NotImplementedError, zipfile.BadZipFile, zlib.error)


class NpzFile:
    """A `.npz` file of numpy.

    Args:
        path: The file. It is an error if it is not such a file, or is cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._headers: dict[str, tuple[tuple[int, ...], bool, np.dtype[Any]]] = {}
        try:
            with zipfile.ZipFile(path) as archive:
                for member in archive.namelist():
                    if member.endswith(".npy"):
                        with archive.open(member) as file:
                            self._headers[member.removesuffix(".npy")] = _header(file)
        except _DAMAGE as error:
            raise self._damaged(error) from None

    def __contains__(self, name: str) -> bool:
        """Whether it has an array of plain values; arrays of Python objects are never read."""
        return name in self._headers and not self._headers[name][2].hasobject

    def names(self) -> list[str]:
        """The names of all arrays, also of those that are never read."""
        return list(self._headers)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array."""
        return self._header(name)[0]

    def dtype(self, name: str) -> np.dtype[Any]:
        """The type of an array."""
        return self._header(name)[2]

    def array(self, name: str) -> NDArray[Any]:
        """An array, read whole."""
        shape, is_fortran, dtype = self._header(name)
        flat = np.empty(int(np.prod(shape)), dtype)
        first = 0
        for part in self.chunks(name):
            flat[first : first + len(part)] = part
            first += len(part)
        return flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)

    def integers(self, name: str) -> NDArray[np.int64]:
        """An array of whole numbers, read whole."""
        return self._as_integers(name, self.array(name))

    def chunks(self, name: str, size: int = _NUMBERS_PER_CHUNK) -> Iterator[NDArray[Any]]:
        """The values of an array in the order of the file, in chunks of `size`."""
        shape, _, dtype = self._header(name)
        left = int(np.prod(shape))
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as file:
                _header(file)
                while left:
                    count = min(left, size)
                    data = file.read(count * dtype.itemsize)
                    if len(data) < count * dtype.itemsize:
                        raise EOFError(f"{name} is cut off")
                    left -= count
                    yield np.frombuffer(data, dtype)
        except _DAMAGE as error:
            raise self._damaged(error) from None

    def pairs(self, name: str) -> Iterator[Pairs]:
        """The edges of an array of shape `(m, 2)` or `(2, m)`."""
        shape, is_fortran, _ = self._header(name)
        if len(shape) != 2 or 2 not in shape:
            raise DataError(f"{self.path}: {name} must have the shape (m, 2), but has {shape}")
        if shape[1] == 2 and not is_fortran:
            for part in self.chunks(name, 2 * _NUMBERS_PER_CHUNK):
                rows = self._as_integers(name, part).reshape(-1, 2)
                yield rows[:, 0], rows[:, 1]
            return
        whole = self.integers(name)
        ends = whole.T if shape[1] == 2 else whole
        for first in range(0, ends.shape[1], _NUMBERS_PER_CHUNK):
            yield (
                ends[0, first : first + _NUMBERS_PER_CHUNK],
                ends[1, first : first + _NUMBERS_PER_CHUNK],
            )

    def _as_integers(self, name: str, values: NDArray[Any]) -> NDArray[np.int64]:
        if values.dtype.kind in "iub":
            return values.astype(np.int64)
        if values.dtype.kind == "f" and np.array_equal(values, np.floor(values)):
            return values.astype(np.int64)
        raise DataError(
            f"{self.path}: {name} must hold whole numbers, but holds {values.dtype.name}"
        )

    def _header(self, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        if name not in self._headers:
            has = ", ".join(self._headers) or "none"
            raise DataError(f"{self.path} has no array {name!r}; it has: {has:.300}")
        header = self._headers[name]
        if header[2].hasobject:
            raise DataError(
                f"{self.path}: {name} holds Python objects, which are never unpickled: save it as "
                "numbers or text"
            )
        return header

    def _damaged(self, error: BaseException) -> DataError:
        return DataError(f"{self.path} is not a readable .npz file: {one_line(error, 200)}")


class SparseMatrix:
    """A sparse matrix in an `.npz` file, in rows (CSR) or as pairs (COO).

    Args:
        file: The file.
        prefix: What precedes `data`, `indices`, `indptr`, `row`, `col` and `shape` in the names of
            its arrays.
    """

    def __init__(self, file: NpzFile, prefix: str = "") -> None:
        self._file = file
        self._prefix = prefix
        self._is_csr = f"{prefix}indptr" in file
        if f"{prefix}format" in file:
            raw = file.array(f"{prefix}format").reshape(-1)[:1].tolist()
            form = raw[0].decode(errors="replace") if raw and isinstance(raw[0], bytes) else raw
            if form not in ("csr", "coo", ["csr"], ["coo"]):
                raise DataError(f"{file.path}: a sparse matrix must be csr or coo, but is {form}")
        shape = file.integers(f"{prefix}shape").reshape(-1)
        if len(shape) != 2:
            raise DataError(f"{file.path}: {prefix}shape must hold two numbers")
        self.shape = (int(shape[0]), int(shape[1]))
        names = ["indices"] if self._is_csr else ["row", "col"]
        names += ["data"] if f"{prefix}data" in file else []
        if len({file.shape(f"{prefix}{name}") for name in names}) > 1:
            raise DataError(f"{file.path}: {prefix}{' and '.join(names)} differ in length")

    def pairs(self) -> Iterator[Pairs]:
        """The rows and columns of the values other than 0, in chunks."""
        file, prefix = self._file, self._prefix
        if self._is_csr:
            places = _csr_pairs(file, prefix, self.shape[0])
        else:
            rows, columns = (file.chunks(f"{prefix}{name}") for name in ("row", "col"))
            places = (
                (row.astype(np.int64), column.astype(np.int64))
                for row, column in zip(rows, columns, strict=True)
            )
        if f"{prefix}data" not in file:
            yield from places
            return
        for (rows_, columns_), values in zip(places, file.chunks(f"{prefix}data"), strict=True):
            is_set = values != 0
            yield (rows_, columns_) if is_set.all() else (rows_[is_set], columns_[is_set])


def _csr_pairs(file: NpzFile, prefix: str, num_rows: int) -> Iterator[Pairs]:
    starts = file.integers(f"{prefix}indptr")
    count = int(np.prod(file.shape(f"{prefix}indices")))
    if (
        len(starts) != num_rows + 1 or starts[0] != 0 or starts[-1] != count
        or (np.diff(starts) < 0).any()
    ):  # fmt: skip
        raise DataError(
            f"{file.path}: {prefix}indptr does not fit {num_rows:,} rows of {count:,} values"
        )
    first = 0
    for part in file.chunks(f"{prefix}indices"):
        rows = np.searchsorted(starts, np.arange(first, first + len(part)), side="right") - 1
        first += len(part)
        yield rows, part.astype(np.int64)


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)
