"""Writing encoded rows to append-only files of fixed-width numbers."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.encoding.file_facts import facts_of_file
from outsize.data.encoding.text_keys import Column

_BUFFER_BYTES = 1 << 20


class ColumnFile:
    """An append-only file of fixed-width numbers, hashed while it is written.

    The stack closes the file, also on an error.
    """

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.name = path.name
        self._file = stack.enter_context(path.open("wb", buffering=_BUFFER_BYTES))
        self._digest = hashlib.sha256()
        self._num_bytes = 0

    def append(self, numbers: NDArray[Any]) -> None:
        """Append numbers in memory order."""
        data = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data
        self._file.write(data)
        self._digest.update(data)
        self._num_bytes += len(data)

    def close(self) -> dict[str, Any]:
        """Sync the file, and return its size and checksum."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {"bytes": self._num_bytes, "sha256": self._digest.hexdigest()}


class SplitFiles:
    """The files of one split: labels, dense features, ids, and bags as values and offsets."""

    def __init__(self, folder: Path, split: str, bags: tuple[str, ...], stack: ExitStack) -> None:
        self.num_rows = 0
        self._plain = {
            kind: ColumnFile(folder / f"{split}-{kind}.bin", stack)
            for kind in ("labels", "dense", "ids")
        }
        self._bags = {
            name: (
                ColumnFile(folder / f"{split}-{name}-values.bin", stack),
                ColumnFile(folder / f"{split}-{name}-ends.bin", stack),
            )
            for name in bags
        }
        self._num_values = dict.fromkeys(bags, 0)

    def append(
        self,
        labels: NDArray[np.uint8],
        dense: NDArray[np.float32],
        ids: NDArray[Any],
        bags: dict[str, tuple[NDArray[Any], NDArray[np.int64]]],
    ) -> None:
        """Append rows; a bag is the concatenated ids of its rows, and their number per row."""
        for kind, numbers in (("labels", labels), ("dense", dense), ("ids", ids)):
            self._plain[kind].append(numbers)
        for name, (values, lengths) in bags.items():
            values_file, ends_file = self._bags[name]
            values_file.append(values)
            ends_file.append(self._num_values[name] + np.cumsum(lengths, dtype=np.int64))
            self._num_values[name] += len(values)
        self.num_rows += len(labels)

    def close(self) -> dict[str, dict[str, Any]]:
        """Close all files, and return the size and checksum of each by name."""
        files = [*self._plain.values(), *(file for pair in self._bags.values() for file in pair)]
        return {file.name: file.close() for file in files}


class ValueNames:
    """A file of (id, value) pairs, one per id, that maps ids back to values."""

    def __init__(self, path: Path, num_ids: int, stack: ExitStack) -> None:
        import pyarrow as pa

        self._schema = pa.schema([("id", pa.int64()), ("value", pa.large_string())])
        self._file = stack.enter_context(pa.OSFile(str(path), "wb"))
        self._writer = pa.ipc.new_file(self._file, self._schema)
        self._path = path
        self._named = np.zeros(num_ids, bool)
        self._named[0] = True

    def add(self, ids: NDArray[np.int64], values: Column) -> None:
        """Write the values of ids that are not in the file yet."""
        import pyarrow as pa

        new = ~self._named[ids]
        if new.any():
            self._named[ids[new]] = True
            named = [pa.array(ids[new]), values.filter(pa.array(new)).cast(pa.large_string())]
            self._writer.write_batch(pa.record_batch(named, schema=self._schema))

    def close(self) -> dict[str, Any]:
        """Sync the file, and return its size and checksum."""
        self._writer.close()
        self._file.close()
        return facts_of_file(self._path)
