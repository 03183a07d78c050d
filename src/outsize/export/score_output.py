"""Writing scores as they come, to a Parquet or CSV file that is whole or absent."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outsize.errors import ConfigError, WriteError
from outsize.files import reason_of, sync_folder, whole_file

_PARQUET, _CSV = (".parquet", ".pq"), (".csv",)


class ScoreOutput:
    """A file of scores; a context that renames it to its name once all are written.

    Args:
        path: A `.parquet` or `.csv` file, which is replaced; `None` for CSV on standard output.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None and path.suffix not in (*_PARQUET, *_CSV):
            raise ConfigError(f"{path}: scores are written to a .parquet or a .csv file")
        if path is not None and path.is_dir():
            raise ConfigError(f"{path} is a folder: name a .parquet or a .csv file")
        self._path = path
        self._stack = contextlib.ExitStack()
        self._writer: Any = None
        self._sink: Any = None

    def __enter__(self) -> ScoreOutput:
        """Open the file under a temporary name."""
        with self._writing():
            self._sink = sys.stdout.buffer
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._sink = self._stack.enter_context(whole_file(self._path))
        return self

    def write(self, rows: Any, scores: Mapping[str, Any]) -> None:
        """Append rows.

        Args:
            rows: A pyarrow table of what identifies them.
            scores: Arrays of the same length.
        """
        import pyarrow as pa

        for name, values in scores.items():
            if name in rows.column_names:
                raise ConfigError(f"a column {name!r} cannot be kept: a score has that name")
            rows = rows.append_column(name, pa.array(values))
        with self._writing():
            if self._writer is None:
                self._writer = self._stack.enter_context(self._open(rows.schema))
            self._writer.write_table(rows)

    def __exit__(self, *error: Any) -> None:
        """Give the file its name, or remove it after an error."""
        with self._writing():
            self._stack.__exit__(*error)
            if self._path is not None and error[0] is None:
                sync_folder(self._path.absolute().parent)

    def _open(self, schema: Any) -> Any:
        import pyarrow.csv as pc
        import pyarrow.parquet as pq

        if self._path is not None and self._path.suffix in _PARQUET:
            return pq.ParquetWriter(self._sink, schema)
        return pc.CSVWriter(
            self._sink, schema, write_options=pc.WriteOptions(quoting_style="needed")
        )

    @contextlib.contextmanager
    def _writing(self) -> Any:
        try:
            yield
        except OSError as error:
            if self._path is None and error.errno == errno.EPIPE:
                raise BrokenPipeError(errno.EPIPE, "standard output was closed") from None
            raise WriteError(
                f"could not write {self._path or 'standard output'}: {reason_of(error)}"
            ) from error
