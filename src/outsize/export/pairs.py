"""Files of pairs of a query and an item, and the items that queries have seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.errors import ConfigError, DataError
from outsize.export.left_out import LeftOut, excluded_ids
from outsize.interrupts import check_stop
from outsize.json_files import Absent, OneOf, check
from outsize.kernels.ragged import Ragged

if TYPE_CHECKING:
    from outsize.data.encoding.bad_rows import BadRows
    from outsize.data.encoding.good_rows import Rows
    from outsize.data.encoding.recipe import Recipe
    from outsize.data.entity_encoder import EntityEncoder

_SCHEMA = {
    "query": str, "item": str, "positive": str, "at_least": OneOf(None, float), "columns": [str],
    "delimiter": str, "quoted": bool, "max_bad_rows": float,
    "metrics": Absent({}), "beta": Absent(float),
}  # fmt: skip


@dataclass(frozen=True)
class PairFiles:
    """How files of pairs are read; attributes as in `InteractionsConfig`."""

    query: str
    item: str
    positive: str = ""
    at_least: float | None = None
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    quoted: bool = True
    max_bad_rows: float = 0.0

    @classmethod
    def of(cls, settings: Any) -> PairFiles:
        """The settings of an object that has attributes of these names."""
        return cls(
            **{field.name: getattr(settings, field.name) for field in dataclasses.fields(cls)}
        )

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> PairFiles:
        """The settings that `config.json` describes; raises a `SchemaError` for others."""
        check(facts, _SCHEMA)
        names = {field.name for field in dataclasses.fields(cls)}
        own = {name: value for name, value in facts.items() if name in names}
        return cls(**{**own, "columns": tuple(own["columns"])})

    def recipe(self, encoder: EntityEncoder | None, *, positives: bool) -> Recipe:
        """What is read of a file: the pair, and the columns of an encoder of queries.

        Args:
            encoder: The encoder, if queries are encoded.
            positives: Whether the column of `positive` is read, and decides which rows count.
        """
        from outsize.data.encoding.recipe import LabelRule, Recipe

        kinds = {} if encoder is None else {c.column: c.kind for c in encoder.columns}
        numbers = tuple(name for name, kind in kinds.items() if kind == "number")
        texts = (self.query, self.item, *(n for n, kind in kinds.items() if kind != "number"))
        label = LabelRule(self.positive, self.at_least) if positives else LabelRule("")
        return Recipe(
            paths=("pairs",),
            label=label,
            standardize=numbers,
            categorical=tuple(dict.fromkeys(texts)),
            columns=self.columns,
            delimiter=self.delimiter,
            quoted=self.quoted,
            separator="|" if encoder is None else encoder.separator or "|",
        )


@runtime_checkable
class RowsOf(Protocol):
    """Looks up raw ids of items."""

    def rows_of(self, values: Any) -> NDArray[np.int64]:
        """The rows of a pyarrow array of raw ids; −1 for those that are unknown."""


class ItemNames:
    """Raw ids of items → their rows.

    Args:
        names: The raw id of each row.
    """

    def __init__(self, names: Sequence[str]) -> None:
        import pyarrow as pa

        from outsize.data.encoding.ids import VocabularyIds
        from outsize.data.encoding.text_keys import text_keys

        self._vocabulary = VocabularyIds(1, 0)
        self._vocabulary.set_keys(text_keys(pa.array(names, pa.large_string())))

    def rows_of(self, values: Any) -> NDArray[np.int64]:
        """The rows of a pyarrow array of raw ids; −1 for those that are unknown."""
        return self._vocabulary.ids_of(values) - 1


class SeenItems:
    """Items that queries have seen, by the key of the query.

    Args:
        keys: The key of the query of each pair.
        items: The row of its item.
        unknown: The items of pairs that were left out because there is no such item.
    """

    def __init__(
        self,
        keys: NDArray[np.uint64],
        items: NDArray[np.int64],
        unknown: LeftOut | None = None,
    ) -> None:
        order = np.lexsort((items, keys))
        self._keys, self._items = keys[order], items[order]
        self._unknown = unknown

    def of(self, keys: NDArray[np.uint64]) -> Ragged:
        """The items of each query, ascending."""
        first = np.searchsorted(self._keys, keys, side="left")
        sizes = np.searchsorted(self._keys, keys, side="right") - first
        starts = np.cumsum(sizes) - sizes
        places = np.arange(int(sizes.sum())) + np.repeat(first - starts, sizes)
        values = torch.from_numpy(self._items[places])
        lists = Ragged.from_sizes(values, torch.from_numpy(sizes.astype(np.int64)))
        return dataclasses.replace(lists, ascending=True)

    def note(self) -> str:
        """One line on unknown items; empty where there are none."""
        return "" if self._unknown is None else self._unknown.note()


def read_seen(paths: Sequence[Path], files: PairFiles, items: ItemNames) -> SeenItems:
    """Read the pairs of files whose items are to be left out; held as 16 bytes per pair.

    A row without a query or an item is left out. Columns other than these two are not read.
    """
    from outsize.data.encoding.bad_rows import BadRows
    from outsize.export.file_reading import cannot_score

    keys, rows, unknown, bad = [], [], excluded_ids(), BadRows()
    for path in paths:
        for part, _ in good_pairs(path, files, files.recipe(None, positives=False), bad):
            found = part.texts[files.item]
            places = items.rows_of(found.values)[found.codes]
            keys.append(query_keys(part, files.query)[places >= 0])
            rows.append(places[places >= 0])
            unknown.add(found.values.take(found.codes[places < 0]))
    if bad.total > files.max_bad_rows * bad.num_rows:
        raise cannot_score(bad)
    return SeenItems(np.concatenate(keys), np.concatenate(rows), unknown)


def good_pairs(
    path: Path,
    files: PairFiles,
    recipe: Recipe,
    bad: BadRows,
    advance: Callable[[str, int], None] = lambda text, count: None,
) -> Iterator[tuple[Rows, NDArray[np.int64]]]:
    """Rows of a file that have a query and an item and count as pairs, and their numbers."""
    from outsize.data.encoding.rows import check_rows, wanted_columns
    from outsize.data.encoding.sources import read_chunks
    from outsize.export.file_reading import file_to_read

    for chunk in read_chunks([file_to_read(path)], wanted_columns(recipe), recipe, bad):
        check_stop()
        rows, is_good = check_rows(chunk, path, recipe, bad)
        numbers = chunk.numbers[is_good]
        is_used = rows.labels > 0
        for name in (files.query, files.item):
            lost = (rows.texts[name].codes < 0) & is_used
            if lost.any():
                place = int(numbers[np.flatnonzero(lost)[0]])
                bad.add(f"no value of {name!r}", int(lost.sum()), f"{path} row {place:,}")
            is_used &= ~lost
        advance("", chunk.num_bytes)
        yield rows.take(is_used), numbers[is_used]


def query_keys(rows: Rows, column: str) -> NDArray[np.uint64]:
    """The key of the query of each row; 0 where it is missing."""
    from outsize.data.encoding.text_keys import text_keys

    text = rows.texts[column]
    return np.append(text_keys(text.values), np.uint64(0))[text.codes]


def listed_items(exclude: Any, items: RowsOf) -> tuple[Ragged, LeftOut]:
    """Lists of raw ids, one per row, as rows of items.

    Args:
        exclude: A sequence of lists, or of `None`.
        items: The items.

    Returns:
        The lists, and the unknown ids.
    """
    import pyarrow as pa

    try:
        lists = [() if one is None else one for one in exclude]
        if any(isinstance(one, str | bytes | Mapping) for one in lists):
            raise TypeError
        sizes = [len(one) for one in lists]
    except TypeError:
        raise DataError(
            "exclude must have a list of item ids for each row, such as [['i3', 'i7'], []]"
        ) from None
    flat = [str(value) for value in chain.from_iterable(lists)]
    names, unknown = pa.array(flat, pa.large_string()), excluded_ids()
    rows = items.rows_of(names)
    unknown.add(names.filter(pa.array(rows < 0)))  # as padding they exclude nothing
    found = Ragged.from_sizes(torch.from_numpy(rows), torch.tensor(sizes, dtype=torch.int64))
    return found, unknown


def require_pair_files(files: PairFiles | None) -> PairFiles:
    """How files of pairs are read; raises a `ConfigError` where it is not known."""
    if files is None:
        raise ConfigError(
            "this model does not know the columns of pairs, because it was trained on data that "
            "has none or exported by an older version: export a run on files again"
        )
    return files
