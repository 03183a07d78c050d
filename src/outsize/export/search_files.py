"""The best items for each query of a file larger than memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from outsize.errors import ConfigError, DataError
from outsize.export.pairs import query_keys, read_seen, require_pair_files
from outsize.export.retrieval import ItemSearcher
from outsize.export.score_files import FileScores, cannot_score, file_progress, file_to_read
from outsize.export.score_output import ScoreOutput
from outsize.interrupts import check_stop
from outsize.models import RetrievalModel


def search_file(
    model: RetrievalModel,
    path: str | Path,
    out: Path | None,
    *,
    k: int = 10,
    exclude: Sequence[Path] = (),
    max_bad_rows: float = 0.0,
    quiet: bool = False,
) -> FileScores:
    """Find the best items for every row of a CSV, TSV or Parquet file of queries.

    The output has `k` lines for each row: "row", counted from 0 without a header, "rank" from 1,
    "item" and "score".

    Args:
        model: An exported retrieval model.
        path: The file; text may be compressed by gzip.
        out: A `.parquet` or `.csv` file, written atomically; `None` for CSV on standard output.
        k: Items per query.
        exclude: Files of pairs; the items that a query has in them are left out for it. The column
            of the query must then be in `path`.
        max_bad_rows: The largest share of rows that is skipped because they are malformed, or ask
            for a query that the training data does not have; more is an error.
        quiet: Show no progress.
    """
    from outsize.data.encoding.bad_rows import BadRows
    from outsize.data.encoding.rows import check_rows, wanted_columns
    from outsize.data.encoding.sources import read_chunks

    searcher = model.searcher
    if model.tokenizer is not None:
        raise ConfigError(
            "this model searches for texts, not for rows of a file: call "
            "outsize.load_exported(DIR).search(texts, k)"
        )
    if not isinstance(searcher, ItemSearcher) or searcher.encoder is None:
        raise ConfigError(
            "this model does not know how raw values become features: it was trained on data that "
            "has none"
        )
    encoder, file, bad = searcher.encoder, file_to_read(Path(path)), BadRows()
    recipe = encoder.recipe()
    seen, pairs = None, None
    if exclude:
        pairs = require_pair_files(searcher.pairs)
        columns = dict.fromkeys((pairs.query, *recipe.categorical))
        recipe = replace(recipe, categorical=tuple(columns))
        seen = read_seen(exclude, pairs, searcher.items)
    header = 0 if file.suffix in (".parquet", ".pq") else 1
    num_rows, total = 0, 0.0
    with ScoreOutput(out) as output, file_progress(file, "search", quiet) as advance:
        for chunk in read_chunks([file], wanted_columns(recipe), recipe, bad):
            check_stop()
            rows, is_good = check_rows(chunk, file, recipe, bad)
            numbers = chunk.numbers[is_good]
            features, is_known = encoder.encode(rows, numbers, bad, f"{file} ")
            if bad.total and not max_bad_rows:
                raise cannot_score(bad)
            numbers = numbers[is_known] - 1 - header
            if len(numbers):
                own = None
                if seen is not None and pairs is not None:
                    own = seen.of(query_keys(rows, pairs.query)[is_known])
                found, scores = searcher.search_features(model, features, k, own)
                output.write(*_lines(searcher, numbers, found.numpy(), scores.numpy()))
                best = scores[:, 0]
                total += float(best[best.isfinite()].sum())  # some may have no items left
            num_rows += len(numbers)
            advance("", chunk.num_bytes)
        if bad.total > max_bad_rows * bad.num_rows:
            raise cannot_score(bad)
        if not num_rows:
            raise DataError(f"{path}: there is no row of data")
    words, note = bad.describe() if bad.total else "", "" if seen is None else seen.note()
    return FileScores(num_rows, bad.total, words, total / num_rows, note)


def _lines(
    searcher: ItemSearcher, numbers: Any, found: Any, scores: Any
) -> tuple[Any, dict[str, Any]]:
    """A line for each item that was found: a table of row and rank, and its item and score."""
    import pyarrow as pa

    width = found.shape[1]
    is_item = found.ravel() >= 0
    table = pa.table(
        {
            "row": np.repeat(numbers, width)[is_item],
            "rank": np.tile(np.arange(1, width + 1), len(numbers))[is_item],
        }
    )
    names = [searcher.names[row] for row in found.ravel()[is_item].tolist()]
    return table, {"item": names, "score": scores.ravel()[is_item]}
