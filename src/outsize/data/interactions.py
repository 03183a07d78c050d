"""Interactions of queries and items, read from tables with columns that describe either."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from outsize.bounds import require_text
from outsize.data.click_data import SPLITS, Split
from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.good_rows import Rows
from outsize.data.encoding.ids import CodedText
from outsize.data.encoding.moments import Moments
from outsize.data.encoding.recipe import (
    LabelRule,
    Recipe,
    feature_name,
    require_distinct_features,
)
from outsize.data.encoding.rows import read_rows
from outsize.data.encoding.sources import find_files, first_of
from outsize.data.encoding.splits import (
    ColumnSplit,
    HashSplit,
    LastOfEachSplit,
    SplitConfig,
    TimeSplit,
)
from outsize.data.encoding.splits.base import TEST, TRAIN, VALIDATION
from outsize.data.encoding.text_keys import Column
from outsize.data.entity_encoder import EntityColumn, EntityEncoder, Kind, split_words
from outsize.data.retrieval_data import Entities, Pairs, RetrievalData, RetrievalDataConfig
from outsize.errors import ConfigError, DataError
from outsize.hashing import derive_seed, mix_bits, uniform_at
from outsize.interrupts import check_stop
from outsize.spec import Pooling

PAIR_SPLITS: dict[str, type[SplitConfig]] = {
    "hash": HashSplit,
    "column": ColumnSplit,
    "time": TimeSplit,
    "last-of-each": LastOfEachSplit,
}


@dataclass(frozen=True)
class InteractionsConfig(RetrievalDataConfig):
    """Any table of interactions, one per row, read into memory.

    Attributes:
        path: Files or patterns, in the order they are read. `.parquet` and `.pq` are Parquet,
            everything else is text with a header, compressed if its name ends in `.gz`.
        query: Column that identifies the query, such as a user.
        item: Column that identifies the item.
        query_features: Other columns that describe the query; values come from its first row.
        item_features: Other columns that describe the item; values come from its first row.
        multi_valued: Those of the feature columns that hold several values and become bags.
        numeric: Those of the feature columns that are numbers. They are standardized over all
            queries or items; missing values become 0.
        separator: Separator between the values of a multi-valued column.
        max_length: Maximum number of values per bag, the first ones; 0 for no limit.
        pooling: How bags are pooled.
        positive: Column that says whether a row is used: 0 or 1, or a number with `at_least`.
            Without it, all rows are used.
        at_least: Rows with at least this value are used, such as ratings from 4 on.
        columns: Names of the columns of text files without a header.
        delimiter: Between columns; by default a comma for `.csv` and a tab for other text.
        quoted: Whether values of a text file may be quoted.
        split: How pairs are divided into training, validation and test sets.
        validation: Share of the training pairs used for validation if the split has no validation
            set.
        max_bad_rows: The largest share of malformed rows that is skipped; more is an error.
        shuffle: Whether training pairs come in a different order each epoch.
        seed: Seed of the shuffling, and of the choice of validation pairs.
    """

    path: tuple[str, ...]
    query: str = "user_id"
    item: str = "item_id"
    query_features: tuple[str, ...] = ()
    item_features: tuple[str, ...] = ()
    multi_valued: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    separator: str = "|"
    max_length: int = 0
    pooling: Pooling = "mean"
    positive: str = ""
    at_least: float | None = None
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    quoted: bool = True
    split: SplitConfig = field(default_factory=HashSplit, metadata={"kinds": PAIR_SPLITS})
    validation: float = 0.05
    max_bad_rows: float = 0.001
    shuffle: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        require_text(self, "path", "query", "item", "query_features", "item_features", "columns")
        self.recipe()  # raises if it is invalid
        if self.at_least is not None and not self.positive:
            raise ConfigError("at_least needs a column to compare: name it as positive")
        further = (*self.query_features, *self.item_features)
        for role, names in (("multi_valued", self.multi_valued), ("numeric", self.numeric)):
            if unknown := set(names) - set(further):
                raise ConfigError(
                    f"{role} names {sorted(unknown)[0]!r}, which is neither in query_features nor "
                    "in item_features"
                )
        if self.multi_valued and not self.separator:
            raise ConfigError("multi_valued columns need a separator that is not empty")
        if both := set(self.multi_valued) & set(self.numeric):
            raise ConfigError(f"column {sorted(both)[0]!r} is used twice: give it one role")
        require_distinct_features((self.query, self.item, *further))
        if not 0 < self.validation < 1:
            raise ConfigError(f"validation must be between 0 and 1, but got {self.validation}")

    def recipe(self) -> Recipe:
        """What is read, as a recipe for the readers of click data."""
        columns = (self.query, self.item, *self.query_features, *self.item_features)
        return Recipe.of(
            self,
            paths=self.path,
            label=LabelRule(self.positive, self.at_least),
            standardize=self.numeric,
            categorical=tuple(name for name in columns if name not in self.numeric),
            multi_valued=(),  # bags are split when entities are made
        )

    def build(self) -> RetrievalData:  # noqa: D102
        rows = self._read()
        assigned = self._assign(rows)
        rows = rows.take(assigned >= 0)
        assigned = assigned[assigned >= 0]
        codes = {name: rows.texts[name].codes for name in (self.query, self.item)}
        # Numbered by first appearance among the rows that are used.
        known = {name: np.unique(c, return_index=True, return_inverse=True)
                 for name, c in codes.items()}  # fmt: skip
        asked, wanted = (torch.from_numpy(known[name][2]) for name in (self.query, self.item))
        pairs: dict[Split, Pairs] = {
            split: (asked[assigned == number], wanted[assigned == number])
            for number, split in enumerate(SPLITS)
        }
        if self.split.test_is_validation:
            pairs["test"] = pairs["validation"]
        sides = ((self.query, self.query_features), (self.item, self.item_features))
        queries, items = (
            self._entities(rows, name, known[name][1], features) for name, features in sides
        )
        return RetrievalData(queries, items, pairs, self.pooling, self.shuffle, self.seed)

    def _read(self) -> Rows:
        """All rows that are used, concatenated."""
        bad, parts = BadRows(), []
        for part in read_rows(find_files(self.path), self.recipe(), bad):
            check_stop()
            missing = np.zeros(len(part), bool)
            for name in (self.query, self.item):
                lost = (part.texts[name].codes < 0) & ~missing
                if lost.any():
                    place = part.first + int(np.flatnonzero(lost)[0]) + 1
                    bad.add(f"no value of {name!r}", int(lost.sum()), f"good row {place:,}")
                missing |= lost
            parts.append(part.take(~missing & (part.labels > 0)))
        bad.require_share(self.max_bad_rows)
        if not sum(map(len, parts)):
            rule = (
                f" with {self.positive} >= {self.at_least:g}" if self.at_least is not None else ""
            )
            raise DataError(f"{first_of(self.path)}: there is no row{rule}")
        return _concatenate(parts)

    def _assign(self, rows: Rows) -> NDArray[np.int8]:
        splitter = self.split.build()
        splitter.observe(rows)
        splitter.finish()
        assigned = splitter.assign(rows)
        if not (assigned == VALIDATION).any():
            keys = torch.from_numpy(rows.positions) + derive_seed(self.seed, "validation")
            chosen = uniform_at(mix_bits(keys)).numpy() < self.validation
            assigned = np.where((assigned == TRAIN) & chosen, VALIDATION, assigned)
        if self.split.test_is_validation:
            return assigned.astype(np.int8)
        if not (assigned == TEST).any():
            raise DataError(
                f"{first_of(self.path)}: the split leaves no pair to test on, of {len(rows):,}"
            )
        return assigned.astype(np.int8)

    def _entities(
        self, rows: Rows, name: str, first: NDArray[np.int64], columns: tuple[str, ...]
    ) -> Entities:
        feature = feature_name(name)
        features = {feature: torch.arange(len(first))}
        sizes = {feature: len(first)}
        own = rows.texts[name]
        names = own.values.take(pa_array(own.codes[first]))
        encoded_columns = [EntityColumn.of_values(name, feature, "id", names)]
        for column in columns:
            feature = feature_name(column)
            if column in self.numeric:
                moments = Moments()
                moments.add(rows.numbers[column][first])
                features[feature] = standardized(rows.numbers[column][first])
                encoded_columns.append(EntityColumn(column, feature, "number", moments=moments))
                continue
            text = CodedText(rows.texts[column].codes[first], rows.texts[column].values)
            separator = self.separator if column in self.multi_valued else None
            encoded, values = encode_column(text, separator, self.max_length)
            features[feature], sizes[feature] = encoded, len(values) + 1
            kind: Kind = "value" if separator is None else "bag"
            encoded_columns.append(EntityColumn.of_values(column, feature, kind, values))
        encoder = EntityEncoder(encoded_columns, self.separator, self.max_length)
        return Entities(len(first), features, sizes, names, encoder)


def encode_column(
    text: CodedText, separator: str | None = None, max_length: int = 0
) -> tuple[Tensor, Column]:
    """The ids of a column, and the values of the ids 1, 2, …; id 0 stands for a missing value.

    With a separator, the values of a row become a bag padded with −1, of at most `max_length` ids.
    """
    used, inverse = np.unique(text.codes[text.codes >= 0], return_inverse=True)
    codes = np.full(len(text.codes), -1)
    codes[text.codes >= 0] = inverse
    if separator is None:
        return torch.from_numpy(codes + 1), text.values.take(pa_array(used))
    lists = split_words(text.values.take(pa_array(used)).to_pylist(), separator, max_length)
    numbers: dict[str, int] = {}
    bags = np.full((len(lists) + 1, max([1, *map(len, lists)])), -1)
    for row, words in enumerate(lists):
        bags[row, : len(words)] = [numbers.setdefault(word, len(numbers) + 1) for word in words]
    return torch.from_numpy(bags[codes]), pa_array(list(numbers), "large_string")


def standardized(numbers: NDArray[np.float64]) -> Float32[Tensor, " rows"]:
    """Standardize numbers; missing values become 0, and so do all values if they are equal."""
    moments = Moments()
    moments.add(numbers)
    return torch.from_numpy(np.nan_to_num(moments.standardize(numbers), nan=0.0)).float()


def pa_array(values: object, kind: str | None = None) -> Column:
    """A pyarrow array."""
    import pyarrow as pa

    return pa.array(values, None if kind is None else pa.type_for_alias(kind))


def _concatenate(parts: list[Rows]) -> Rows:
    """Concatenate the rows of several chunks, with one dictionary per text column."""
    texts = {
        name: CodedText.concatenate([part.texts[name] for part in parts]) for name in parts[0].texts
    }
    numbers = {
        name: np.concatenate([part.numbers[name] for part in parts]) for name in parts[0].numbers
    }
    labels = np.concatenate([part.labels for part in parts])
    return Rows(0, 0, labels, numbers, texts, sum(part.num_bytes for part in parts))
