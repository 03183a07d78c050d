"""A sample of rows from files of any size, in bounded memory and time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outsize.data.encoding.sources import find_files
from outsize.data.encoding.text_keys import Column
from outsize.errors import DataError, one_line

MAX_ROWS = 200_000
MAX_FILES = 16
_SCANNED_ROWS = 2_000_000
_BATCH_ROWS = 1 << 15
_ENDINGS = (".parquet", ".pq", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")


@dataclass(frozen=True)
class Sample:
    """Rows of some files, and what was found out about all of them.

    Attributes:
        patterns: The files, as a run file names them.
        columns: Name → pyarrow array; of text files, texts with null for empty ones.
        num_rows: Rows in the sample.
        total_rows: Rows of all files; an estimate unless `is_whole`, or the files are Parquet.
        is_whole: Whether the sample is all there is.
        is_text: Whether the files are text.
        reading: Keys of `[data]` that reading these files needs, such as `delimiter`.
        notes: What a user should know of it.
        bad_share: Share of rows with a wrong number of values.
        repeated: Names that several columns have; they are not among `columns`.
    """

    patterns: tuple[str, ...]
    columns: dict[str, Column]
    num_rows: int
    total_rows: int
    is_whole: bool
    is_text: bool
    reading: dict[str, Any]
    notes: tuple[str, ...] = ()
    bad_share: float = 0.0
    repeated: tuple[str, ...] = ()


def read_sample(data: str) -> Sample:
    """Read a sample of a file, of the files that match a pattern, or of those in a folder."""
    from outsize.suggest.text_sample import read_text_sample

    pattern = _pattern_of(data)
    files = find_files((pattern,))
    is_parquet = {path.suffix in (".parquet", ".pq") for path in files}
    if len(is_parquet) > 1:
        raise DataError(
            f"{data} has Parquet and text files: name those of one form, such as {data}/*.parquet"
        )
    chosen = [
        files[i] for i in np.linspace(0, len(files) - 1, min(len(files), MAX_FILES)).astype(int)
    ]
    if True in is_parquet:
        sample = _read_parquet_sample(pattern, files, chosen)
    else:
        sample = read_text_sample(pattern, files, chosen)
    if sample.num_rows == 0:
        raise DataError(f"{data}: there is no row of data, only a header")
    return sample


def thinned(num_rows: int, most: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """At most `most` of `num_rows` rows, evenly spaced."""
    if num_rows <= most:
        return np.arange(num_rows)
    return np.linspace(0, num_rows - 1, most).astype(np.int64)


def _pattern_of(data: str) -> str:
    """A folder as the pattern of the files in it that occur most often."""
    folder = Path(data)
    if not folder.is_dir():
        return data
    names = [path.name for path in folder.iterdir() if path.is_file()]
    counts = {
        ending: sum(name.endswith(ending) for name in names if not name.startswith((".", "_")))
        for ending in _ENDINGS
    }
    best = max(counts, key=lambda ending: counts[ending])
    if not counts[best]:
        raise DataError(f"{data} has no file that ends in one of {', '.join(_ENDINGS)}")
    return str(folder / f"*{best}")


def _read_parquet_sample(pattern: str, files: list[Path], chosen: list[Path]) -> Sample:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        total = sum(pq.ParquetFile(path).metadata.num_rows for path in files)
        parts = [_slice_of(path, MAX_ROWS // len(chosen), len(chosen)) for path in chosen]
        table = pa.concat_tables(parts, promote_options="permissive")
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{pattern} is not readable Parquet: {one_line(error, 200)}") from None
    names = table.column_names
    repeated = tuple(sorted({name for name in names if names.count(name) > 1}))
    columns = {
        name: table.column(place).combine_chunks()
        for place, name in enumerate(names)
        if name not in repeated
    }
    return Sample(
        (pattern,), columns, table.num_rows, total, table.num_rows == total, False, {},
        repeated=repeated,
    )  # fmt: skip


def _slice_of(path: Path, most: int, num_files: int) -> Any:
    """Evenly spaced rows of a Parquet file, of row groups that are spread over it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    scanned = max(most, _SCANNED_ROWS // num_files)
    num_groups = file.metadata.num_row_groups
    if num_groups == 0:
        return file.schema_arrow.empty_table()
    per_group = max(1, file.metadata.num_rows // num_groups)
    groups = thinned(num_groups, max(1, scanned // per_group)).tolist()
    read = min(scanned, sum(file.metadata.row_group(group).num_rows for group in groups))
    step = max(1.0, read / most)
    parts, seen = [], 0
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=groups):
        first = -(-seen // step) * step
        rows = np.arange(first, seen + batch.num_rows, step).astype(np.int64) - seen
        parts.append(batch.take(pa.array(rows[rows < batch.num_rows])))
        seen += batch.num_rows
        if seen >= scanned:
            break
    return pa.Table.from_batches(parts, file.schema_arrow)
