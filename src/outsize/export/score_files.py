"""Scoring files larger than memory, and measuring how good the scores are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from outsize.errors import ConfigError, DataError
from outsize.export.predicting import RowScorer, serving_recipe
from outsize.export.score_output import ScoreOutput
from outsize.interrupts import check_stop
from outsize.metrics import ClickMetrics
from outsize.models import ClickModel

if TYPE_CHECKING:
    from outsize.data.encoding.bad_rows import BadRows
    from outsize.data.encoding.recipe import Recipe
    from outsize.data.encoding.row_encoder import EncodedRows
    from outsize.data.encoding.sources import Chunk


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


def score_file(
    model: ClickModel,
    path: str | Path,
    out: Path | None,
    *,
    keep: Sequence[str] = (),
    max_bad_rows: float = 0.0,
    quiet: bool = False,
) -> FileScores:
    """Score every row of a CSV, TSV or Parquet file, and write the scores as they come.

    The output has a line for each row that was scored: "row", counted from 0 without a header, the
    columns to keep, "probability" and "logit".

    Args:
        model: An exported model.
        path: The file; text may be compressed by gzip.
        out: A `.parquet` or `.csv` file, written atomically; `None` for CSV on standard output.
        keep: Columns of the file to copy to the output.
        max_bad_rows: The largest share of malformed rows that is skipped; more is an error.
        quiet: Show no progress.
    """
    scorer = scorer_of(model)
    pending = _Pending()
    reading = _Reading(scorer, Path(path), serving_recipe(scorer.encoder.recipe), tuple(keep))
    num_rows, total = 0, 0.0
    with ScoreOutput(out) as output, file_progress(reading.path, "score", quiet) as advance:
        rows = reading.rows(advance, max_bad_rows, pending.add)
        for logits, _ in scorer.scored(model, rows):
            check_stop()
            probability = torch.sigmoid(logits.double())
            scores = {"probability": probability.numpy(), "logit": logits.numpy()}
            output.write(pending.take(len(logits)), scores)
            num_rows += len(logits)
            total += float(probability.sum())
        reading.finish(max_bad_rows)
        if not num_rows:
            raise DataError(f"{path}: there is no row of data")
    bad = reading.bad
    words = bad.describe() if bad.total else ""
    return FileScores(num_rows, bad.total, words, total / num_rows)


def evaluate_file(
    model: ClickModel,
    path: str | Path,
    *,
    max_bad_rows: float | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """The metrics of a model on a labelled file, with the number of rows.

    Labels are read as in training: rows whose label is dropped there are left out.

    Args:
        model: An exported model.
        path: A CSV, TSV or Parquet file.
        max_bad_rows: The largest share of malformed rows that is skipped; by default as in
            training.
        quiet: Show no progress.
    """
    scorer = scorer_of(model)
    recipe = serving_recipe(scorer.encoder.recipe, labelled=True)
    most = recipe.max_bad_rows if max_bad_rows is None else max_bad_rows
    reading = _Reading(scorer, Path(path), recipe)
    metrics = ClickMetrics()
    with file_progress(reading.path, "evaluate", quiet) as advance:
        for logits, labels in scorer.scored(model, reading.rows(advance, 1.0)):
            check_stop()
            metrics.add(logits, labels)
    reading.finish(most)
    if not metrics.num_examples:
        raise DataError(f"{path}: there is no row of data")
    return {**metrics.result(), "num_rows": metrics.num_examples, "num_bad": reading.bad.total}


def scorer_of(model: ClickModel) -> RowScorer:
    """The scorer of a model; raises a `ConfigError` if it has none."""
    scorer = getattr(model, "predictor", None)
    if not isinstance(scorer, RowScorer):
        raise ConfigError(
            "this model does not know how raw values become ids, because it was trained on data "
            "that has none or exported by an older version: export a run on files again"
        )
    return scorer


class _Reading:
    """The rows of one file, checked and encoded.

    Args:
        scorer: Encodes them.
        path: The file.
        recipe: What is read.
        keep: Further columns to read.
    """

    def __init__(
        self, scorer: RowScorer, path: Path, recipe: Recipe, keep: tuple[str, ...] = ()
    ) -> None:
        from outsize.data.encoding.bad_rows import BadRows

        self.path = file_to_read(path)
        self.bad: BadRows = BadRows()
        self._scorer = scorer
        self._keep = keep
        self._recipe = _fitted(self.path, recipe)

    def rows(
        self,
        advance: Callable[[str, int], None],
        max_bad_rows: float,
        told: Callable[[Any], None] = lambda table: None,
    ) -> Iterator[EncodedRows]:
        """Good rows in chunks; `told` is given their numbers and the columns to keep.

        With no share of bad rows allowed, the first one raises.
        """
        from outsize.data.encoding.rows import wanted_columns
        from outsize.data.encoding.sources import read_chunks

        wanted = dict.fromkeys((*wanted_columns(self._recipe), *self._keep))
        header = 0 if self._is_parquet or self._recipe.columns else 1
        for chunk in read_chunks([self.path], tuple(wanted), self._recipe, self.bad):
            encoded, is_good = self._scorer.encode(chunk, self.path, self._recipe, self.bad)
            if self.bad.total and not max_bad_rows:
                raise cannot_score(self.bad)
            told(kept_columns(chunk, self._keep, is_good, header, not self._is_parquet))
            advance("", chunk.num_bytes)
            yield encoded

    def finish(self, max_bad_rows: float) -> None:
        """Raise a `DataError` if there were too many bad rows."""
        if self.bad.total > max_bad_rows * self.bad.num_rows:
            raise cannot_score(self.bad)

    @property
    def _is_parquet(self) -> bool:
        return self.path.suffix in (".parquet", ".pq")


class _Pending:
    """Facts about rows that were read and not scored yet, in order."""

    def __init__(self) -> None:
        self._tables: list[Any] = []

    def add(self, table: Any) -> None:
        self._tables.append(table)

    def take(self, num_rows: int) -> Any:
        """Those of the next rows."""
        import pyarrow as pa

        whole = pa.concat_tables(self._tables)
        self._tables = [whole.slice(num_rows)]
        return whole.slice(0, num_rows)


def kept_columns(
    chunk: Chunk, keep: tuple[str, ...], is_good: Any, header: int, is_text: bool
) -> Any:
    """The numbers of the good rows, and their values of the columns to keep."""
    import pyarrow as pa

    columns = {"row": pa.array(chunk.numbers[is_good] - 1 - header)}
    mask = None if is_good.all() else pa.array(is_good)
    for name in keep:
        column = chunk.columns[name]
        if is_text:
            column = pa.array([None if v is None else v.decode() for v in column.to_pylist()])
            column = column.cast(pa.string())
        columns[name] = column if mask is None else column.filter(mask)
    return pa.table(columns)


def _fitted(path: Path, recipe: Recipe) -> Recipe:
    """A recipe for text without a header whose file has no column of labels."""
    from outsize.data.encoding.sources import delimiter_of, read_header

    names = recipe.columns
    if not names or path.suffix in (".parquet", ".pq"):
        return recipe
    width = len(read_header(path, recipe.delimiter or delimiter_of(path), recipe.quoted))
    unlabelled = [name for name in names if name in recipe.id_columns + recipe.dense_columns]
    if width == len(unlabelled) < len(names) and not recipe.label.column:
        return replace(recipe, columns=tuple(unlabelled))
    return recipe


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
