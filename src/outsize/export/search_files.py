"""The best items for each query of a file larger than memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from outsize.errors import ConfigError
from outsize.export.file_reading import FileReading, FileScores, write_ranked
from outsize.export.pairs import query_keys, read_seen, require_pair_files
from outsize.export.retrieval import ItemSearcher
from outsize.export.score_output import ScoreOutput
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
    from outsize.data.encoding.rows import check_rows, wanted_columns

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
    encoder, reading = searcher.encoder, FileReading(path, max_bad_rows)
    recipe = encoder.recipe()
    seen, pairs = None, None
    if exclude:
        pairs = require_pair_files(searcher.pairs)
        columns = dict.fromkeys((pairs.query, *recipe.categorical))
        recipe = replace(recipe, categorical=tuple(columns))
        seen = read_seen(exclude, pairs, searcher.items)
    with ScoreOutput(out) as output, reading.progress("search", quiet):
        for chunk in reading.chunks(wanted_columns(recipe), recipe):
            rows, is_good = check_rows(chunk, reading.path, recipe, reading.bad)
            numbers, where = chunk.numbers[is_good], f"{reading.path} "
            features, is_known = encoder.encode(rows, numbers, reading.bad, where)
            reading.require_good()
            if not is_known.any():
                continue
            own = None
            if seen is not None and pairs is not None:
                own = seen.of(query_keys(rows, pairs.query)[is_known])
            found, scores = searcher.search_features(model, features, k, own)
            is_good[is_good] = is_known
            is_there, best = found >= 0, scores[:, 0]
            names = [searcher.names[row] for row in found[is_there].tolist()]
            table = reading.rows_out(chunk, recipe, is_good)
            columns = {"item": names, "score": scores[is_there].numpy()}
            write_ranked(output, table, columns, is_there.numpy())
            reading.add(len(best), float(best[best.isfinite()].sum()))  # some have no items left
        return reading.scores("" if seen is None else seen.note())
