"""Predicting the nodes and links of files larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outsize.errors import ConfigError, DataError
from outsize.export.asked_nodes import AskedNodes, NodeReader, UnknownNeighbors
from outsize.export.graph_columns import file_columns
from outsize.export.graph_predictors import LinkPredictor, NodePredictor
from outsize.export.pairs import SeenItems
from outsize.export.score_files import (
    FileScores,
    cannot_score,
    file_progress,
    file_to_read,
    kept_columns,
)
from outsize.export.score_output import ScoreOutput
from outsize.interrupts import check_stop
from outsize.models import GraphModel

if TYPE_CHECKING:
    from outsize.data.encoding.sources import Chunk

Advance = Callable[[str, int], None]


class NodeFileReading:
    """The nodes that the rows of a file ask for.

    Args:
        reader: Reads them.
        path: A CSV, TSV or Parquet file.
        others: Further columns to read.
    """

    def __init__(self, reader: NodeReader, path: str | Path, others: Sequence[str] = ()) -> None:
        from outsize.data.encoding.bad_rows import BadRows

        self.path = file_to_read(Path(path))
        self.present = file_columns(self.path, reader.columns)
        self.bad, self.unknown = BadRows(), UnknownNeighbors()
        self._reader, self._others = reader, tuple(others)

    def chunks(self, advance: Advance, max_bad_rows: float) -> Iterator[tuple[Chunk, AskedNodes]]:
        """The rows in chunks; with no share of bad rows allowed, the first one raises."""
        from outsize.data.encoding.sources import read_chunks

        form = self._reader.columns
        wanted = form.wanted(self.present, *self._others)
        for chunk in read_chunks([self.path], wanted, form, self.bad):
            check_stop()
            asked = self._reader.read(chunk, self.path, self.bad, self.unknown)
            yield chunk, asked
            self.require_good(max_bad_rows)
            advance("", chunk.num_bytes)

    def require_good(self, max_bad_rows: float) -> None:
        """Raise a `DataError` for a bad row if none is allowed."""
        if self.bad.total and not max_bad_rows:
            raise cannot_score(self.bad)

    def finish(self, max_bad_rows: float, num_rows: int) -> None:
        """Raise a `DataError` if there were too many bad rows, or none that is good."""
        if self.bad.total > max_bad_rows * self.bad.num_rows:
            raise cannot_score(self.bad)
        if not num_rows:
            raise DataError(f"{self.path}: there is no row of data")

    def kept(self, chunk: Chunk, keep: tuple[str, ...], is_good: NDArray[np.bool_]) -> Any:
        """A table of the numbers of good rows, and their values of the columns to keep."""
        is_parquet = self.path.suffix in (".parquet", ".pq")
        header = 0 if is_parquet or self._reader.columns.columns else 1
        return kept_columns(chunk, keep, is_good, header, not is_parquet)

    def scores(self, num_rows: int, total: float) -> FileScores:
        """What scoring the file came to."""
        words = self.bad.describe() if self.bad.total else ""
        return FileScores(num_rows, self.bad.total, words, total / num_rows, self.unknown.note())


def predict_graph_file(
    model: GraphModel,
    path: Path,
    out: Path | None,
    *,
    keep: Sequence[str] = (),
    top: int | None = None,
    exclude: Sequence[Path] = (),
    max_bad_rows: float = 0.0,
    quiet: bool = False,
) -> tuple[FileScores, str]:
    """Predict what a file asks for: classes of nodes, scores of pairs, or the best targets.

    A file with the column of targets has pairs. Arguments as for `score_nodes` and `search_links`.

    Returns:
        What it came to, and the name of its mean.
    """
    predictor: Any = model.predictor
    if isinstance(predictor, NodePredictor):
        if exclude:
            raise ConfigError("--exclude is for links and two-tower models: leave it out")
        found = score_nodes(
            predictor, path, out, keep=keep, top=top, max_bad_rows=max_bad_rows, quiet=quiet
        )
        return found, "mean probability of the best class"
    assert isinstance(predictor, LinkPredictor)
    if predictor.columns.target in file_columns(file_to_read(path), predictor.columns):
        if exclude or top is not None:
            raise ConfigError(
                f"{path} has pairs, which are scored: leave --top and --exclude out, or the column "
                f"{predictor.columns.target!r} to find targets"
            )
        found = score_links(predictor, path, out, keep=keep, max_bad_rows=max_bad_rows, quiet=quiet)
        return found, "mean score"
    found = search_links(
        predictor, path, out, k=10 if top is None else top, exclude=exclude, keep=keep,
        max_bad_rows=max_bad_rows, quiet=quiet,
    )  # fmt: skip
    return found, "mean score of the best target"


def score_nodes(
    predictor: NodePredictor,
    path: str | Path,
    out: Path | None,
    *,
    keep: Sequence[str] = (),
    top: int | None = None,
    max_bad_rows: float = 0.0,
    quiet: bool = False,
) -> FileScores:
    """Predict the classes of every node of a CSV, TSV or Parquet file.

    The output has `top` lines for each row: "row", counted from 0 without a header, the columns to
    keep, "rank" from 1, "class" and "probability".

    Args:
        predictor: Of an exported model.
        path: The file, with the column of ids; text may be compressed by gzip.
        out: A `.parquet` or `.csv` file, written atomically; `None` for CSV on standard output.
        keep: Columns of the file to copy to the output.
        top: Classes per node; by default the best one, or all where a node may have several.
        max_bad_rows: The largest share of malformed rows that is skipped; more is an error.
        quiet: Show no progress.
    """
    classes = np.array(predictor.classes)
    if top is not None and top < 1:
        raise ConfigError(f"--top must be >= 1, but got {top}")
    count = min(top or (len(classes) if predictor.multi_label else 1), len(classes))
    reading = NodeFileReading(predictor.reader, path, keep)
    num_rows, total = 0, 0.0
    with ScoreOutput(out) as output, file_progress(reading.path, "score", quiet) as advance:
        for chunk, asked in reading.chunks(advance, max_bad_rows):
            reading.require_good(max_bad_rows)
            if not len(asked.nodes):
                continue
            kind = predictor.reader.node_type
            logits = predictor.encoder.encode(kind, asked.nodes, asked.new)
            best = predictor.probabilities(logits).topk(count, dim=1)
            table = reading.kept(chunk, tuple(keep), asked.is_good)
            values = best.values.numpy()
            output.write(
                _ranked(table, count),
                {
                    "class": classes[best.indices.numpy().ravel()],
                    "probability": values.ravel(),
                },
            )
            num_rows += len(asked.nodes)
            total += float(values[:, 0].sum())
        reading.finish(max_bad_rows, num_rows)
    return reading.scores(num_rows, total)


def score_links(
    predictor: LinkPredictor,
    path: str | Path,
    out: Path | None,
    *,
    keep: Sequence[str] = (),
    max_bad_rows: float = 0.0,
    quiet: bool = False,
) -> FileScores:
    """Score every pair of a file; arguments as for `score_nodes`.

    The output has a line for each row: "row", the columns to keep, and "score".
    """
    assert predictor.columns.target is not None
    reading = NodeFileReading(predictor.reader, path, (predictor.columns.target, *keep))
    num_rows, total = 0, 0.0
    with ScoreOutput(out) as output, file_progress(reading.path, "score", quiet) as advance:
        for chunk, asked in reading.chunks(advance, max_bad_rows):
            pairs, targets = predictor.read_targets(chunk, reading.path, asked, reading.bad)
            reading.require_good(max_bad_rows)
            scores = predictor.score(pairs, targets).numpy()
            output.write(reading.kept(chunk, tuple(keep), pairs.is_good), {"score": scores})
            num_rows += len(scores)
            total += float(scores.sum())
        reading.finish(max_bad_rows, num_rows)
    return reading.scores(num_rows, total)


def search_links(
    predictor: LinkPredictor,
    path: str | Path,
    out: Path | None,
    *,
    k: int = 10,
    exclude: Sequence[Path] = (),
    keep: Sequence[str] = (),
    max_bad_rows: float = 0.0,
    quiet: bool = False,
) -> FileScores:
    """Find the best targets for every source of a file; other arguments as for `score_nodes`.

    The output has `k` lines for each row: "row", the columns to keep, "rank", "target" and "score".

    Args:
        predictor: Of an exported model.
        path: The file, with the column of sources.
        out: The file to write.
        k: Targets per source.
        exclude: Files of pairs; the targets that a source has in them are left out for it.
        keep: Columns of the file to copy to the output.
        max_bad_rows: The largest share of malformed rows that is skipped; more is an error.
        quiet: Show no progress.
    """
    if k < 1:
        raise ConfigError(f"--top must be >= 1, but got {k}")
    seen = read_known_links(predictor, exclude) if exclude else None
    reading = NodeFileReading(predictor.reader, path, keep)
    num_rows, total = 0, 0.0
    with ScoreOutput(out) as output, file_progress(reading.path, "search", quiet) as advance:
        for chunk, asked in reading.chunks(advance, max_bad_rows):
            reading.require_good(max_bad_rows)
            if not len(asked.nodes):
                continue
            own = None if seen is None else seen.of(asked.nodes.astype(np.uint64))
            found, scores = predictor.best_targets(asked, k, own)
            is_there = found.numpy().ravel() >= 0
            table = _ranked(reading.kept(chunk, tuple(keep), asked.is_good), k)
            names = predictor.names(found.numpy().ravel()[is_there])
            columns = {"target": names, "score": scores.numpy().ravel()[is_there]}
            output.write(table.filter(is_there), columns)
            best = scores[:, 0]
            num_rows += len(asked.nodes)
            total += float(best[best.isfinite()].sum())
        reading.finish(max_bad_rows, num_rows)
    found_scores = reading.scores(num_rows, total)
    if seen is None or not seen.note():
        return found_scores
    notes = [note for note in (found_scores.note, seen.note()) if note]
    return FileScores(
        num_rows, found_scores.num_bad, found_scores.bad_rows, found_scores.mean, "; ".join(notes)
    )


def read_known_links(predictor: LinkPredictor, paths: Sequence[Path]) -> SeenItems:
    """Read pairs of files whose targets are to be left out, by the number of their source."""
    from outsize.data.encoding.bad_rows import BadRows
    from outsize.data.encoding.sources import read_chunks

    columns, reader = predictor.columns, predictor.reader
    assert columns.target is not None
    none = np.zeros(0, np.int64)
    sources, targets, num_unknown, example = [none], [none], 0, ""
    for path in map(file_to_read, paths):
        for chunk in read_chunks([path], (columns.id, columns.target), columns, BadRows()):
            check_stop()
            own, _ = reader.look_up(chunk, path, columns.id, reader.node_type)
            other, missing = reader.look_up(chunk, path, columns.target, predictor.target_type)
            lost = np.flatnonzero((other < 0) & ~missing)
            num_unknown += len(lost)
            if len(lost) and not example:
                value = chunk.columns[columns.target][int(lost[0])].as_py()
                example = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
            both = (own >= 0) & (other >= 0)
            sources.append(own[both])
            targets.append(other[both])
    keys = np.concatenate(sources).astype(np.uint64)
    return SeenItems(keys, np.concatenate(targets), num_unknown, example)


def _ranked(table: Any, count: int) -> Any:
    """A table with `count` lines for each of its rows, numbered from 1 as "rank"."""
    import pyarrow as pa

    rows = np.repeat(np.arange(table.num_rows), count)
    ranks = np.tile(np.arange(1, count + 1), table.num_rows)
    if "rank" in table.column_names:
        raise ConfigError("a column 'rank' cannot be kept: the ranks have that name")
    return table.take(pa.array(rows)).append_column("rank", pa.array(ranks))
