"""Reading a file whose rows are scored or measured: its bad rows, and what the scores come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outsize.errors import ConfigError, DataError
from outsize.interrupts import check_stop

if TYPE_CHECKING:
    from outsize.data.encoding.bad_rows import BadRows
    from outsize.data.encoding.sources import Chunk, TextForm
    from outsize.export.score_output import ScoreOutput


@dataclass(frozen=True)
class FileScores:
    """What scoring a file came to.

    Attributes:
        num_rows: Rows that were scored.
        num_bad: Malformed rows, which were skipped.
        bad_rows: These in words; empty where there are none.
        mean: The mean probability, or the mean score of the best item.
        note: What else a user should know, in one line; mostly empty.
    """

    num_rows: int
    num_bad: int
    bad_rows: str
    mean: float
    note: str = ""


@dataclass(frozen=True)
class LabelledFile:
    """A file that a model is measured on.

    Attributes:
        path: A CSV, TSV or Parquet file with the columns and the label of the training data.
        exclude: Files of pairs, whose items are left out of rankings.
        max_bad_rows: The largest share of malformed rows that is skipped; by default as in
            training, and none for a graph.
        quiet: Show no progress.
    """

    path: Path
    exclude: Sequence[Path] = ()
    max_bad_rows: float | None = None
    quiet: bool = False


class FileReading:
    """A file that is read in chunks.

    Attributes:
        path: The file.
        bad: Its malformed rows so far.

    Args:
        path: A CSV, TSV or Parquet file.
        max_bad_rows: The largest share of malformed rows that is skipped; more is an error.
        keep: Columns to copy to the scores.
    """

    def __init__(self, path: str | Path, max_bad_rows: float, keep: Sequence[str] = ()) -> None:
        from outsize.data.encoding.bad_rows import BadRows

        self.path = file_to_read(Path(path))
        self.bad = BadRows()
        self.keep = tuple(keep)
        self._max_bad_rows = max_bad_rows
        self._num_rows, self._total = 0, 0.0
        self._advance: Callable[[str, int], None] = lambda text, count: None

    @contextmanager
    def progress(self, verb: str, quiet: bool) -> Iterator[None]:
        """Show a progress bar of the bytes that are read inside."""
        with file_progress(self.path, verb, quiet) as self._advance:
            yield

    def chunks(self, wanted: Sequence[str], form: TextForm) -> Iterator[Chunk]:
        """The rows in chunks, with the wanted columns and those to keep."""
        from outsize.data.encoding.sources import read_chunks

        columns = tuple(dict.fromkeys((*wanted, *self.keep)))
        for chunk in read_chunks([self.path], columns, form, self.bad):
            check_stop()
            yield chunk
            self._advance("", chunk.num_bytes)

    def require_good(self) -> None:
        """Raise a `DataError` for a bad row if none is allowed."""
        if self.bad.total and not self._max_bad_rows:
            raise cannot_score(self.bad)

    def rows_out(self, chunk: Chunk, form: TextForm, is_good: NDArray[np.bool_]) -> Any:
        """A table of the numbers of good rows, and their values of the columns to keep."""
        import pyarrow as pa

        is_parquet = self.path.suffix in (".parquet", ".pq")
        header = 0 if is_parquet or form.columns else 1
        columns = {"row": pa.array(chunk.numbers[is_good] - 1 - header)}
        mask = None if is_good.all() else pa.array(is_good)
        for name in self.keep:
            column = chunk.columns[name]
            if not is_parquet:
                column = pa.array([None if v is None else v.decode() for v in column.to_pylist()])
                column = column.cast(pa.string())
            columns[name] = column if mask is None else column.filter(mask)
        return pa.table(columns)

    def add(self, num_rows: int, total: float) -> None:
        """Count rows that were scored, with the sum of their scores, or of their best ones."""
        self._num_rows += num_rows
        self._total += total

    def finish(self, num_rows: int) -> None:
        """Raise a `DataError` if there were too many bad rows, or no row at all."""
        if self.bad.total > self._max_bad_rows * self.bad.num_rows:
            raise cannot_score(self.bad)
        if not num_rows:
            raise DataError(f"{self.path}: there is no row of data")

    def scores(self, *notes: str) -> FileScores:
        """What scoring the file came to."""
        self.finish(self._num_rows)
        words = self.bad.describe() if self.bad.total else ""
        mean, note = self._total / self._num_rows, "; ".join(filter(None, notes))
        return FileScores(self._num_rows, self.bad.total, words, mean, note)


def write_ranked(output: ScoreOutput, table: Any, columns: dict[str, Any], is_there: Any) -> None:
    """Write several lines for each row of a table, numbered from 1 as "rank".

    Args:
        output: Where to.
        table: A pyarrow table of the rows.
        columns: The values of the lines that are there.
        is_there: `(rows, lines)`: Which lines are written.
    """
    import pyarrow as pa

    if "rank" in table.column_names:
        raise ConfigError("a column 'rank' cannot be kept: the ranks have that name")
    rows, places = np.nonzero(is_there)
    output.write(table.take(pa.array(rows)).append_column("rank", pa.array(places + 1)), columns)


def file_to_read(path: Path) -> Path:
    """The path of a file that is there and not empty; raises a `DataError` otherwise."""
    if not path.is_file():
        kind = "is a folder" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {kind}; give a CSV, TSV or Parquet file")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: there is nothing to read in it")
    return path


def cannot_score(bad: BadRows) -> DataError:
    """The error for a file with too many bad rows."""
    return DataError(
        f"{bad.describe()}; correct the file, or allow a share of such rows with --max-bad-rows"
    )


@contextmanager
def file_progress(path: Path, verb: str, quiet: bool) -> Iterator[Callable[[str, int], None]]:
    """A progress bar of the bytes of a file, as a function; its first argument is ignored."""
    from outsize.data.encoding.encoding_progress import encoding_progress

    if quiet:
        yield lambda text, count: None
        return
    with encoding_progress(path.stat().st_size, verb) as advance:
        yield lambda text, count: advance(verb, count)
