"""Pairs of texts in files, one per row: Parquet, JSON lines, CSV or TSV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.bounds import require_text
from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.encoding_progress import encoding_progress
from outsize.data.encoding.good_rows import Rows
from outsize.data.encoding.ids import CodedText
from outsize.data.encoding.sources import Chunk, find_files, first_of, read_chunks
from outsize.data.encoding.splits import ColumnSplit, HashSplit, SplitConfig
from outsize.data.encoding.text_keys import Column
from outsize.data.texts.assembling import Judgements, assemble
from outsize.data.texts.config import TextDataConfig
from outsize.data.texts.json_lines import read_json_lines
from outsize.data.texts.text_column import (
    NOT_WHOLE,
    distinct_texts,
    good_rows,
    joined,
    strings_of,
    whole_numbers,
)
from outsize.data.texts.text_pairs import TextPairs
from outsize.errors import ConfigError, DataError
from outsize.interrupts import check_stop
from outsize.suggestions import shortened

TEXT_SPLITS: dict[str, type[SplitConfig]] = {"hash": HashSplit, "column": ColumnSplit}
_JSON_LINES = (".jsonl", ".ndjson", ".json")
_QUERY = "query"  # the column that a hash split keeps together


@dataclass(frozen=True)
class TextPairsConfig(TextDataConfig):
    """Pairs of a query and an item, both texts, one pair per row.

    Rows whose query or item is empty are left out and counted, and so are malformed rows. Without
    columns of ids, equal texts are one query or one item.

    Attributes:
        path: Files or patterns, in the order they are read. `.parquet` and `.pq` are Parquet,
            `.jsonl`, `.ndjson` and `.json` hold a JSON object per line, everything else is text
            with a header; text is compressed if its name ends in `.gz`.
        query: Column of the query's text.
        item: Column of the item's text.
        query_id: Column of the query's id; without it, queries are numbered.
        item_id: Column of the item's id; without it, items are numbered.
        grade: Column that says how relevant the item is, a whole number; 0 is not relevant. Without
            it, every pair is relevant.
        split: How pairs are divided into training, validation and test sets: by a hash, of the
            query unless it names a column, or by the values of a column.
        validation: Share of the training queries used for validation if the split has no
            validation set.
        columns: Names of the columns of text files without a header.
        delimiter: Between columns; by default a comma for `.csv` and a tab for other text.
        quoted: Whether values of a text file may be quoted.
        max_bad_rows: The largest share of rows that is left out; more is an error.
    """

    path: tuple[str, ...]
    query: str = "query"
    item: str = "item"
    query_id: str = ""
    item_id: str = ""
    grade: str = ""
    split: SplitConfig = field(default_factory=HashSplit, metadata={"kinds": TEXT_SPLITS})
    validation: float = 0.05
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    quoted: bool = True
    max_bad_rows: float = 0.001

    def __post_init__(self) -> None:
        require_text(self, "path", "query", "item", "columns")
        if self.query == self.item:
            raise ConfigError(f"column {self.query!r} is both query and item: name two columns")
        if not 0 < self.validation < 1:
            raise ConfigError(f"validation must be between 0 and 1, but got {self.validation}")

    def read(self) -> TextPairs:  # noqa: D102
        bad = BadRows()
        rows: dict[str, list[Column]] = {name: [] for name in self._columns}
        for path, chunk in self._chunks(bad):
            check_stop()
            found = {name: strings_of(chunk, name, path) for name in self._columns}
            checked = {"query": found[self.query], "item": found[self.item]}
            if self.query_id:
                checked["query id"] = found[self.query_id]
            if self.item_id:
                checked["item id"] = found[self.item_id]
            if self.grade:
                checked["grade"] = found[self.grade]
            good = good_rows(checked, bad, path, chunk)
            if self.grade:
                wrong = good & ~whole_numbers(found[self.grade])[1]
                value = partial(_shown, found[self.grade])
                chunk.refuse(bad, NOT_WHOLE, wrong, path, value)
                good &= ~wrong
            for name, values in found.items():
                rows[name].append(values.filter(good))
        bad.require_share(self.max_bad_rows)
        source = first_of(self.path)
        texts = {name: joined(parts) for name, parts in rows.items()}
        if not len(texts[self.query]):
            raise DataError(f"{source}: there is no pair of texts")
        queries, asked = distinct_texts(
            texts.get(self.query_id), texts[self.query], "query", source
        )
        items, wanted = distinct_texts(texts.get(self.item_id), texts[self.item], "item", source)
        grades = np.ones(len(asked), np.int64)
        if self.grade:
            grades = whole_numbers(texts[self.grade])[0]
        judged = Judgements(asked, wanted, grades, self._splits(texts, asked, queries.ids))
        notes = (bad.describe(),) if bad.total else ()
        return assemble(queries, items, judged, source, self.validation, self.seed, notes)

    @property
    def _columns(self) -> tuple[str, ...]:
        further = (self.query_id, self.item_id, self.grade, *self.split.text_columns)
        return tuple(dict.fromkeys((self.query, self.item, *filter(None, further))))

    def _chunks(self, bad: BadRows) -> Iterator[tuple[Path, Chunk]]:
        files = find_files(self.path)
        with encoding_progress(sum(path.stat().st_size for path in files), "read") as advance:
            for path in files:
                name = path.with_suffix("") if path.suffix == ".gz" else path
                is_json = name.suffix in _JSON_LINES
                chunks = (
                    read_json_lines(path, self._columns, bad)
                    if is_json
                    else read_chunks([path], self._columns, self, bad)
                )
                for chunk in chunks:
                    yield path, chunk
                    advance("read", chunk.num_bytes)

    def _splits(
        self, texts: dict[str, Column], asked: NDArray[np.int64], ids: Column
    ) -> NDArray[np.int8]:
        split = self.split
        coded = {_QUERY: CodedText(asked, ids)}
        if isinstance(split, HashSplit) and not split.column:
            split = replace(split, column=_QUERY)
            if not self.query_id:
                coded = {_QUERY: _coded(texts[self.query])}
        else:
            coded = {name: _coded(texts[name]) for name in split.text_columns}
        labels = np.ones(len(asked), np.uint8)
        assigned: NDArray[np.int8] = split.build().assign(Rows(0, 0, labels, {}, coded, 0))
        if not (assigned >= 0).any():
            raise DataError(
                f"{first_of(self.path)}: no row has a value of the split's column that names a "
                "split: set split.train, split.validation and split.test"
            )
        return assigned


def _shown(values: Column, row: int) -> str:
    return shortened(str(values[row].as_py()))


def _coded(values: Column) -> CodedText:
    coded = values.dictionary_encode()
    codes = np.asarray(coded.indices.fill_null(-1)).astype(np.int64)
    return CodedText(codes, coded.dictionary)
