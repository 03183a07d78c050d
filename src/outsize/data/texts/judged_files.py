"""Reading corpora, queries and relevance judgements that are in files of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.click_data import SPLITS, Split
from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.sources import Chunk, first_of
from outsize.data.encoding.text_keys import Column
from outsize.data.texts.assembling import Judgements, assemble, distinct_pairs
from outsize.data.texts.text_column import (
    NOT_WHOLE,
    KnownIds,
    distinct_texts,
    good_rows,
    joined,
    strings_of,
    whole_numbers,
)
from outsize.data.texts.text_pairs import TextPairs, Texts
from outsize.errors import DataError
from outsize.interrupts import check_stop
from outsize.suggestions import shortened

_MOST_REPEATED = 1 << 22  # judgements that may be repetitions, before these are left out


@dataclass(frozen=True)
class TextTable:
    """How files without a header are written: columns between tabs."""

    columns: tuple[str, ...]
    delimiter: str = "\t"
    quoted: bool = False


def read_texts(
    chunks: Iterable[tuple[Path, Chunk]],
    columns: tuple[str, str],
    what: str,
    bad: BadRows,
    title: str = "",
) -> Texts:
    """The texts of some files; those without an id or a word are left out and counted.

    Args:
        chunks: Chunks of columns, with their files.
        columns: The column of the id and that of the text.
        what: What they are: "query" or "item".
        bad: Counts what is left out.
        title: A column whose text is put before the other.
    """
    ids: list[Column] = []
    texts: list[Column] = []
    paths: dict[str, None] = {}
    for path, chunk in chunks:
        check_stop()
        paths[str(path)] = None
        found = {name: strings_of(chunk, name, path) for name in chunk.columns}
        text = _titled(found[title], found[columns[1]]) if title else found[columns[1]]
        checked = {f"{what} id": found[columns[0]], what: text}
        good = good_rows(checked, bad, path, chunk)
        ids.append(found[columns[0]].filter(good))
        texts.append(text.filter(good))
    source = first_of(tuple(paths)) if paths else ""  # without a row, nothing is refused
    return distinct_texts(joined(ids), joined(texts), what, source)[0]


def _titled(titles: Column, texts: Column) -> Column:
    import pyarrow as pa
    import pyarrow.compute as pc

    space = pa.scalar(" ", pa.large_string())
    both = pc.binary_join_element_wise(pc.fill_null(titles, ""), pc.fill_null(texts, ""), space)
    return pc.utf8_trim_whitespace(both)


class JudgedPairs:
    """Collects judgements of pairs by the ids of both, split by split.

    Each pair is held once, however often it occurs: files of triples repeat a pair for each of its
    negatives.

    Args:
        queries: The queries.
        items: The corpus.
        bad: Counts judgements of queries or items that are not there, and grades that are not whole
            numbers.
    """

    def __init__(self, queries: Texts, items: Texts, bad: BadRows) -> None:
        self._queries, self._items, self._bad = queries, items, bad
        self._known = {"query": KnownIds(queries), "item": KnownIds(items)}
        self._found: list[Judgements] = []
        self._num_distinct = 0
        self._num_added = 0

    def add(
        self,
        split: Split,
        path: Path,
        numbers: NDArray[np.int64],
        columns: Mapping[str, Column],
    ) -> None:
        """Add the judgements of a chunk: columns "query", "item" and "grade", strings."""
        self._bad.num_rows += len(numbers)
        rows = {n: known.rows(_without_nulls(columns[n])) for n, known in self._known.items()}
        grades, is_number = whole_numbers(columns["grade"])
        good = np.ones(len(numbers), bool)
        for kind, name, is_bad in (
            (NOT_WHOLE, "grade", ~is_number),
            ("an item that is not in the corpus", "item", rows["item"] < 0),
            ("a query that has no text", "query", rows["query"] < 0),
        ):
            # What is not relevant may be absent: many corpora are samples.
            found = is_bad & good & (grades > 0)
            if found.any():
                place = int(np.flatnonzero(found)[0])
                value = shortened(str(columns[name][place].as_py()))
                where = f"{path} line {int(numbers[place]):,}: {name} {value!r}"
                self._bad.add(kind, int(found.sum()), where)
            good &= ~is_bad
        good &= grades > 0
        number = SPLITS.index(split)
        self._found.append(
            Judgements(
                rows["query"][good],
                rows["item"][good],
                grades[good],
                np.full(int(good.sum()), number, np.int8),
            )
        )
        self._num_added += int(good.sum())
        if self._num_added > max(_MOST_REPEATED, self._num_distinct):
            self._found = [self._distinct()]
            self._num_distinct, self._num_added = self.num_held, 0

    @property
    def num_held(self) -> int:
        """How many judgements are held."""
        return sum(len(judged.queries) for judged in self._found)

    def _distinct(self) -> Judgements:
        parts = [(j.queries, j.items, j.grades, j.splits) for j in self._found]
        return distinct_pairs(
            Judgements(*(np.concatenate(values) for values in zip(*parts, strict=True)))
        )

    def assemble(
        self,
        source: str,
        validation: float,
        seed: int,
        max_bad_rows: float,
        others: Sequence[BadRows] = (),
    ) -> TextPairs:
        """The pairs of each split; refused if too many judgements or texts were left out.

        Args:
            source: Where they are from, for messages.
            validation: Share of the training queries, where no validation set is judged.
            seed: Seed of their choice.
            max_bad_rows: The largest share that is left out, of judgements and of each of `others`.
            others: What was left out of the texts.
        """
        notes = []
        for bad in (*others, self._bad):
            bad.require_share(max_bad_rows)
            if bad.total:
                notes.append(bad.describe())
        if not self._found:
            raise DataError(f"{source}: there are no judgements of pairs")
        judged = self._distinct()
        return assemble(self._queries, self._items, judged, source, validation, seed, tuple(notes))


def _without_nulls(values: Column) -> Column:
    import pyarrow.compute as pc

    return pc.fill_null(values, "")
