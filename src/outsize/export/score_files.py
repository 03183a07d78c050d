"""Scoring files larger than memory, and measuring how good the scores are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from outsize.errors import ConfigError
from outsize.export.file_reading import FileReading, FileScores
from outsize.export.predicting import RowScorer, serving_recipe
from outsize.export.score_output import ScoreOutput
from outsize.interrupts import check_stop
from outsize.metrics import ClickMetrics
from outsize.models import ClickModel

if TYPE_CHECKING:
    from outsize.data.encoding.recipe import Recipe
    from outsize.data.encoding.row_encoder import EncodedRows


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
    scorer, reading, pending = scorer_of(model), FileReading(path, max_bad_rows, keep), _Pending()
    recipe = serving_recipe(scorer.encoder.recipe)
    with ScoreOutput(out) as output, reading.progress("score", quiet):
        for logits, _ in scorer.scored(model, _encoded(reading, scorer, recipe, pending)):
            check_stop()
            probability = torch.sigmoid(logits.double())
            scores = {"probability": probability.numpy(), "logit": logits.numpy()}
            output.write(pending.take(len(logits)), scores)
            reading.add(len(logits), float(probability.sum()))
        return reading.scores()


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
    reading, metrics = FileReading(path, most), ClickMetrics()
    with reading.progress("evaluate", quiet):
        for logits, labels in scorer.scored(model, _encoded(reading, scorer, recipe)):
            check_stop()
            metrics.add(logits, labels)
    reading.finish(metrics.num_examples)
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


class _Pending:
    """Facts about rows that were read and not scored yet, in order."""

    def __init__(self) -> None:
        self._tables: list[Any] = []

    def add(self, table: Any) -> None:
        self._tables.append(table)

    def take(self, num_rows: int) -> Any:
        """The facts about the next rows."""
        import pyarrow as pa

        whole = pa.concat_tables(self._tables)
        self._tables = [whole.slice(num_rows)]
        return whole.slice(0, num_rows)


def _encoded(
    reading: FileReading, scorer: RowScorer, recipe: Recipe, pending: _Pending | None = None
) -> Iterator[EncodedRows]:
    """The good rows of a file in chunks; they are added to `pending`, unless a bad row raises."""
    from outsize.data.encoding.rows import wanted_columns

    recipe = _fitted(reading.path, recipe)
    for chunk in reading.chunks(wanted_columns(recipe), recipe):
        encoded, is_good = scorer.encode(chunk, reading.path, recipe, reading.bad)
        if pending is not None:
            reading.require_good()
            pending.add(reading.rows_out(chunk, recipe, is_good))
        yield encoded


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
