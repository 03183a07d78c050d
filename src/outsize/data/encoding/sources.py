"""Streaming the files of a data set as chunks of columns."""

from __future__ import annotations

import array
import csv
import glob
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.text_keys import Column
from outsize.data.encoding.unreadable import ReadableStream
from outsize.errors import DataError, one_line
from outsize.suggestions import few

# Small, because the allocator retains many times the size of a block.
BLOCK_BYTES = 1 << 22
_PARQUET_ROWS = 1 << 15
_HEAD_BYTES = 1 << 20
_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t", ".dat": "\t", "": "\t"}


@runtime_checkable
class TextForm(Protocol):
    """How text files are written."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of files without a header."""

    @property
    def delimiter(self) -> str:
        """The character between columns; empty for the one that the file's name implies."""

    @property
    def quoted(self) -> bool:
        """Whether values may be quoted."""


@dataclass(frozen=True)
class Chunk:
    """Rows of one file.

    Attributes:
        file: Number of the file.
        columns: Name → pyarrow array; bytes where the file is text.
        num_rows: Number of rows.
        numbers: For each row, its line in a text file or its row in a Parquet file, from 1.
        num_bytes: Approximate number of bytes of the file.
    """

    file: int
    columns: dict[str, Column]
    num_rows: int
    numbers: NDArray[np.int64]
    num_bytes: int

    def refuse(
        self,
        bad: BadRows,
        kind: str,
        wrong: NDArray[np.bool_],
        path: Path | None,
        value_of: Callable[[int], str] | None = None,
    ) -> None:
        """Count wrong rows as bad; the first is described, with its value if that can be told."""
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            value = "" if value_of is None else f": {value_of(row)}"
            bad.add(kind, int(wrong.sum()), self.place_of(row, path) + value)

    def place_of(self, row: int, path: Path | None) -> str:
        """Where a row is, for messages; rows in memory have no path."""
        if path is None:
            return f"row {self.numbers[row]:,}"
        unit = "row" if path.suffix in (".parquet", ".pq") else "line"
        return f"{path} {unit} {self.numbers[row]:,}"


def find_files(patterns: tuple[str, ...]) -> list[Path]:
    """The files that names and patterns match; those of a pattern are sorted by name and number."""
    files: list[Path] = []
    for pattern in patterns:
        found = [pattern] if os.path.isfile(pattern) else glob.glob(pattern)
        matches = sorted((Path(path) for path in found if os.path.isfile(path)), key=_by_number)
        if not matches:
            raise DataError(
                f"{pattern!s:.200}: no such file; paths are relative to the folder the command "
                "runs in"
            )
        files += matches
    for path in files:
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty: there is nothing to read in it")
    return files


def first_of(patterns: tuple[str, ...]) -> str:
    """The first of a list of names and patterns, and the number of the others."""
    return patterns[0] + (f" and {len(patterns) - 1} more" if len(patterns) > 1 else "")


def source_facts(files: list[Path]) -> list[dict[str, Any]]:
    """Facts that change with a file: its size, its time and a hash of its first bytes."""
    facts = []
    for path in files:
        try:
            stat = path.stat()
            with path.open("rb") as file:
                head = hashlib.sha256(file.read(_HEAD_BYTES)).hexdigest()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        facts.append(
            {"name": path.name, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "head": head}
        )
    return facts


def read_chunks(
    files: list[Path], wanted: tuple[str, ...], form: TextForm, bad: BadRows, comment: str = ""
) -> Iterator[Chunk]:
    """Stream the wanted columns of all files; rows with a wrong number of columns are bad rows.

    Args:
        files: Parquet or text files.
        wanted: Names of columns.
        form: How text files are written.
        bad: Counts the bad rows.
        comment: Lines at the top of a text file that start with this are skipped; empty for none.
    """
    import pyarrow as pa

    damaged = (OSError, EOFError, ValueError, zlib.error, csv.Error, pa.ArrowException)
    for number, path in enumerate(files):
        is_parquet = path.suffix in (".parquet", ".pq")
        try:
            if is_parquet:
                yield from _read_parquet(number, path, wanted)
            else:
                yield from _read_text(number, path, wanted, form, bad, comment)
        except DataError:
            raise
        except damaged as error:
            flaw = "cannot be read as text columns"
            if is_parquet:
                flaw = "is not a readable Parquet file" + _damaged_column(path, wanted, damaged)
            raise DataError(f"{path} {flaw}: {reason_not_read(error)}") from None


def reason_not_read(error: BaseException) -> str:
    """Why a file cannot be read, in one line."""
    reason = one_line(error, 200)
    if "straddling" not in reason:
        return reason
    return (
        f'a row has more than {BLOCK_BYTES >> 20} MiB, as after a quote (") that is never closed: '
        "close it, or write quotes within a value twice"
    )


def _read_parquet(number: int, path: Path, wanted: tuple[str, ...]) -> Iterator[Chunk]:
    import pyarrow.parquet as pq

    # Buffering ahead would hold what was read until the end of the file.
    file = pq.ParquetFile(path, pre_buffer=False)
    _require_columns(path, wanted, file.schema_arrow.names)
    total, size, first = file.metadata.num_rows, path.stat().st_size, 0
    for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=list(wanted)):
        columns = {name: batch.column(name) for name in wanted}
        numbers = np.arange(first + 1, first + 1 + batch.num_rows)
        first += batch.num_rows
        share = size * batch.num_rows // max(1, total)
        yield Chunk(number, columns, batch.num_rows, numbers, share)


def _damaged_column(
    path: Path, wanted: tuple[str, ...], damaged: tuple[type[Exception], ...]
) -> str:
    """The first column that cannot be read even alone, in words; empty if none is to blame."""
    import pyarrow.parquet as pq

    blamed = ""
    try:
        file = pq.ParquetFile(path)
        for name in wanted:
            blamed = f" (column {name!r})"
            for _ in file.iter_batches(columns=[name]):
                pass
    except damaged:
        return blamed
    return ""


def _read_text(
    number: int,
    path: Path,
    wanted: tuple[str, ...],
    form: TextForm,
    bad: BadRows,
    comment: str,
) -> Iterator[Chunk]:
    import pyarrow as pa
    import pyarrow.csv as pc

    delimiter = form.delimiter or delimiter_of(path)
    num_comments = _count_comments(path, comment)
    names = list(form.columns) or read_header(path, delimiter, form.quoted, num_comments)
    num_before = num_comments + (0 if form.columns else 1)
    _require_columns(path, wanted, names)
    malformed = _WrongWidths(path, bad)
    with pa.OSFile(str(path)) as raw:
        source = pa.CompressedInputStream(raw, "gzip") if path.suffix == ".gz" else raw
        reader = pc.open_csv(
            pa.PythonFile(ReadableStream(source), mode="r"),
            # One thread is faster for many columns, and keeps line numbers known.
            read_options=pc.ReadOptions(
                use_threads=False,
                block_size=BLOCK_BYTES,
                column_names=names,
                skip_rows=num_before,
            ),
            parse_options=pc.ParseOptions(
                delimiter=delimiter,
                quote_char='"' if form.quoted else False,
                newlines_in_values=form.quoted,
                invalid_row_handler=malformed.skip,
            ),
            convert_options=pc.ConvertOptions(
                include_columns=list(wanted),
                column_types=dict.fromkeys(wanted, pa.binary()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
                null_values=[""],
            ),
        )
        first, position = num_before, 0
        for batch in reader:
            columns = {name: batch.column(name) for name in wanted}
            numbers = malformed.lines(first, batch.num_rows)
            first += batch.num_rows
            position, before = raw.tell(), position
            yield Chunk(number, columns, batch.num_rows, numbers, position - before)


@dataclass
class _WrongWidths:
    """Skips rows with a wrong number of columns, and corrects the line numbers after them."""

    path: Path
    bad: BadRows
    skipped: array.array[int] = field(default_factory=lambda: array.array("q"))

    def skip(self, row: Any) -> str:
        where = (
            f"{self.path} line {row.number:,}: {row.actual_columns} columns, "
            f"not {row.expected_columns}"
        )
        self.bad.add("a wrong number of columns", 1, where)
        self.bad.num_rows += 1
        self.skipped.append(row.number)
        return "skip"

    def lines(self, first: int, count: int) -> NDArray[np.int64]:
        """The line numbers of `count` good lines, after the first `first` good ones."""
        ranks = np.arange(first + 1, first + 1 + count)
        skipped = np.array(self.skipped, np.int64)
        before = np.searchsorted(skipped - np.arange(len(skipped)), ranks, side="right")
        return ranks + before


def read_header(path: Path, delimiter: str, quoted: bool, skip: int = 0) -> list[str]:
    """The values of the first line of a text file, after some that are skipped."""
    with _opened(path) as file:
        for _ in range(skip):
            file.readline(BLOCK_BYTES)
        line = file.readline(BLOCK_BYTES).rstrip("\r\n")
    if not quoted:
        return str(line).split(delimiter)
    return next(csv.reader([line], delimiter=delimiter), [])


def _count_comments(path: Path, comment: str) -> int:
    """How many lines at the top of a text file start with `comment`."""
    if not comment:
        return 0
    with _opened(path) as file:
        return sum(1 for _ in takewhile(lambda line: line.startswith(comment), file))


def _opened(path: Path) -> io.TextIOWrapper:
    opened: Any = gzip.open if path.suffix == ".gz" else open
    file: io.TextIOWrapper = opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="")
    return file


def _require_columns(path: Path, wanted: tuple[str, ...], names: list[str]) -> None:
    for name in wanted:
        if name not in names:
            raise DataError(f"{path} has no column {name!r}; it has: {few(names, name)}")
        if names.count(name) > 1:
            raise DataError(f"{path} has {names.count(name)} columns {name!r}: rename all but one")


def delimiter_of(path: Path) -> str:
    """The delimiter that the name of a text file implies."""
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    return _DELIMITERS.get(suffix, "\t")


def _by_number(path: Path) -> tuple[str, int, str]:
    """A sort key that puts day_2 before day_10."""
    stem = path.name.split(".")[0]
    head = stem.rstrip("0123456789")
    digits = stem[len(head) :]
    return (str(path.parent / head), int(digits) if digits else -1, path.name)
