"""Predicting the nodes and links of files larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outsize.errors import ConfigError
from outsize.export.asked_nodes import AskedNodes, NodeReader, UnknownNeighbors
from outsize.export.file_reading import FileReading, FileScores, file_to_read, write_ranked
from outsize.export.graph_columns import file_columns
from outsize.export.graph_predictors import LinkPredictor, NodePredictor
from outsize.export.pairs import SeenItems
from outsize.export.score_output import ScoreOutput
from outsize.interrupts import check_stop
from outsize.models import GraphModel

if TYPE_CHECKING:
    from outsize.data.encoding.sources import Chunk


class NodeFileReading(FileReading):
    """The nodes that the rows of a file ask for.

    Args:
        reader: Reads them.
        path: A CSV, TSV or Parquet file.
        max_bad_rows: The largest share of malformed rows that is skipped; more is an error.
        others: Further columns to read.
        keep: Columns to copy to the scores.
    """

    def __init__(
        self,
        reader: NodeReader,
        path: str | Path,
        max_bad_rows: float,
        others: Sequence[str] = (),
        keep: Sequence[str] = (),
    ) -> None:
        super().__init__(path, max_bad_rows, keep)
        self.unknown = UnknownNeighbors()
        self._reader, self._others = reader, tuple(others)

    def asked(self) -> Iterator[tuple[Chunk, AskedNodes]]:
        """The rows in chunks, and the nodes they ask for."""
        form = self._reader.columns
        wanted = form.wanted(file_columns(self.path, form), *self._others)
        for chunk in self.chunks(wanted, form):
            yield chunk, self._reader.read(chunk, self.path, self.bad, self.unknown)


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
    reading = NodeFileReading(predictor.reader, path, max_bad_rows, keep=keep)
    with ScoreOutput(out) as output, reading.progress("score", quiet):
        for chunk, asked in reading.asked():
            reading.require_good()
            if not len(asked.nodes):
                continue
            kind = predictor.reader.node_type
            logits = predictor.encoder.encode(kind, asked.nodes, asked.new)
            best = predictor.probabilities(logits).topk(count, dim=1)
            values, found = best.values.numpy(), classes[best.indices.numpy()]
            table = reading.rows_out(chunk, predictor.reader.columns, asked.is_good)
            columns = {"class": found.ravel(), "probability": values.ravel()}
            write_ranked(output, table, columns, np.ones(values.shape, bool))
            reading.add(len(values), float(values[:, 0].sum()))
        return reading.scores(reading.unknown.note())


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
    others = (predictor.columns.target,)
    reading = NodeFileReading(predictor.reader, path, max_bad_rows, others, keep)
    with ScoreOutput(out) as output, reading.progress("score", quiet):
        for chunk, asked in reading.asked():
            pairs, targets = predictor.read_targets(chunk, reading.path, asked, reading.bad)
            reading.require_good()
            scores = predictor.score(pairs, targets).numpy()
            table = reading.rows_out(chunk, predictor.columns, pairs.is_good)
            output.write(table, {"score": scores})
            reading.add(len(scores), float(scores.sum()))
        return reading.scores(reading.unknown.note())


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
    reading = NodeFileReading(predictor.reader, path, max_bad_rows, keep=keep)
    with ScoreOutput(out) as output, reading.progress("search", quiet):
        for chunk, asked in reading.asked():
            reading.require_good()
            if not len(asked.nodes):
                continue
            own = None if seen is None else seen.of(asked.nodes.astype(np.uint64))
            found, scores = predictor.best_targets(asked, k, own)
            table = reading.rows_out(chunk, predictor.columns, asked.is_good)
            is_there, best = found >= 0, scores[:, 0]
            names = predictor.names(found[is_there].numpy())
            columns = {"target": names, "score": scores[is_there].numpy()}
            write_ranked(output, table, columns, is_there.numpy())
            reading.add(len(best), float(best[best.isfinite()].sum()))
        return reading.scores(reading.unknown.note(), "" if seen is None else seen.note())


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
