"""Predicting the nodes and links of files larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outsize.errors import ConfigError
from outsize.export.asked_nodes import AskedNodes, NodeReader, unknown_neighbors
from outsize.export.file_reading import FileReading, FileScores, file_to_read, write_ranked
from outsize.export.graph_columns import file_columns
from outsize.export.graph_predictors import LinkPredictor, NodePredictor
from outsize.export.left_out import excluded_ids
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
        self.unknown = unknown_neighbors()
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

    A file with the column of targets has pairs. The output has "row", counted from 0 without a
    header, the columns to keep, and what was predicted: "rank" from 1, "class" and "probability";
    "score" of a pair; or "rank", "target" and "score".

    Args:
        model: An exported model.
        path: A CSV, TSV or Parquet file with the column of ids; text may be compressed by gzip.
        out: A `.parquet` or `.csv` file, written atomically; `None` for CSV on standard output.
        keep: Columns of the file to copy to the output.
        top: Classes or targets per row; by default 10 targets, the best class, or all classes where
            a node may have several.
        exclude: Files of pairs; the targets that a source has in them are left out for it.
        max_bad_rows: The largest share of malformed rows that is skipped; more is an error.
        quiet: Show no progress.

    Returns:
        What it came to, and the name of its mean.
    """
    predictor: Any = model.predictor
    predict: Callable[[NodeFileReading, ScoreOutput], str]
    columns = predictor.reader.columns
    others: tuple[str, ...] = ()
    if top is not None and top < 1:
        raise ConfigError(f"--top must be >= 1, but got {top}")
    if isinstance(predictor, NodePredictor):
        if exclude:
            raise ConfigError("--exclude is for links and two-tower models: leave it out")
        predict = partial(_score_nodes, predictor, top=top)
        verb, name = "score", "mean probability of the best class"
    elif columns.target in file_columns(file_to_read(path), columns):
        if exclude or top is not None:
            raise ConfigError(
                f"{path} has pairs, which are scored: leave --top and --exclude out, or the column "
                f"{columns.target!r} to find targets"
            )
        predict, others = partial(_score_links, predictor), (columns.target,)
        verb, name = "score", "mean score"
    else:
        seen = read_known_links(predictor, exclude) if exclude else None
        predict = partial(_search_links, predictor, k=10 if top is None else top, seen=seen)
        verb, name = "search", "mean score of the best target"
    reading = NodeFileReading(predictor.reader, path, max_bad_rows, others, keep)
    with ScoreOutput(out) as output, reading.progress(verb, quiet):
        note = predict(reading, output)
        return reading.scores(reading.unknown.note(), note), name


def _score_nodes(
    predictor: NodePredictor, reading: NodeFileReading, output: ScoreOutput, top: int | None
) -> str:
    """Write the best classes of every node."""
    classes = np.array(predictor.classes)
    count = min(top or (len(classes) if predictor.multi_label else 1), len(classes))
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
    return ""


def _score_links(predictor: LinkPredictor, reading: NodeFileReading, output: ScoreOutput) -> str:
    """Write the score of every pair."""
    for chunk, asked in reading.asked():
        pairs, targets = predictor.read_targets(chunk, reading.path, asked, reading.bad)
        reading.require_good()
        scores = predictor.score(pairs, targets).numpy()
        table = reading.rows_out(chunk, predictor.columns, pairs.is_good)
        output.write(table, {"score": scores})
        reading.add(len(scores), float(scores.sum()))
    return ""


def _search_links(
    predictor: LinkPredictor, reading: NodeFileReading, output: ScoreOutput, k: int,
    seen: SeenItems | None,
) -> str:  # fmt: skip
    """Write the best targets of every source, without those it is known to have."""
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
    return "" if seen is None else seen.note()


def read_known_links(predictor: LinkPredictor, paths: Sequence[Path]) -> SeenItems:
    """Read pairs of files whose targets are to be left out, by the number of their source."""
    import pyarrow as pa

    from outsize.data.encoding.bad_rows import BadRows
    from outsize.data.encoding.sources import read_chunks

    columns, reader = predictor.columns, predictor.reader
    assert columns.target is not None
    none = np.zeros(0, np.int64)
    sources, targets, unknown = [none], [none], excluded_ids()
    for path in map(file_to_read, paths):
        for chunk in read_chunks([path], (columns.id, columns.target), columns, BadRows()):
            check_stop()
            own, _ = reader.look_up(chunk, path, columns.id, reader.node_type)
            other, missing = reader.look_up(chunk, path, columns.target, predictor.target_type)
            unknown.add(chunk.columns[columns.target].filter(pa.array((other < 0) & ~missing)))
            both = (own >= 0) & (other >= 0)
            sources.append(own[both])
            targets.append(other[both])
    keys = np.concatenate(sources).astype(np.uint64)
    return SeenItems(keys, np.concatenate(targets), unknown)
