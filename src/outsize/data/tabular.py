"""Click data in tables: CSV, TSV or Parquet files, described in the run file."""

from __future__ import annotations

from dataclasses import dataclass, field

from outsize.data.clicks import ClickDataConfig
from outsize.data.encoded import EncodedClicks
from outsize.data.encoding import LabelRule, Recipe, VocabularyConfig, open_encoded
from outsize.data.encoding.splits import SPLITS_BY_KIND, HashSplit, SplitConfig
from outsize.spec import Pooling


@dataclass(frozen=True)
class TabularConfig(ClickDataConfig):
    """Any table of examples.

    Attributes:
        path: Files or patterns, in the order they are read. `.parquet` and `.pq` are Parquet,
            everything else is text with a header, compressed where it ends in `.gz`.
        label: Column of the label, 0 or 1.
        positive_from: Where the label is a number: from here on it counts as 1.
        positive_values: Where the label is a text: these are 1, others 0.
        dropped_labels: Rows with these labels, numbers, are left out.
        dense: Numeric columns taken as they are; what is missing is 0.
        log1p: Numeric columns taken as log(x + 1); what is missing or negative is 0.
        standardize: Numeric columns less their mean, over their standard deviation; what is missing
            is 0.
        categorical: Columns with one value a row; what is missing is unknown.
        multi_valued: Columns with several values a row, which become bags.
        separator: What stands between the values of such a column.
        max_length: How many of a row's values are kept, the first ones; 0 keeps all.
        pooling: How bags are pooled: "sum", "mean" or "max".
        columns: Names of the columns of text files without a header.
        delimiter: Between columns; by default a comma for `.csv` and a tab for other text.
        quoted: Whether values of a text file may be quoted.
        vocabulary: How values become ids.
        split: Which rows train, validate and test.
        subsample: Take every so-manieth row.
        max_bad_rows: The share of malformed rows that is skipped rather than refused.
        cache: Folder for encoded data; by default `.outsize-cache` beside the first file.
        verify: Compare every byte of encoded data with its checksum when it is opened.
        shuffle: Whether training rows come in another order each epoch.
        seed: Seed of the shuffling.
    """

    path: tuple[str, ...]
    label: str
    positive_from: float | None = None
    positive_values: tuple[str, ...] = ()
    dropped_labels: tuple[float, ...] = ()
    dense: tuple[str, ...] = ()
    log1p: tuple[str, ...] = ()
    standardize: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    multi_valued: tuple[str, ...] = ()
    separator: str = "|"
    max_length: int = 0
    pooling: Pooling = "sum"
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    quoted: bool = True
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: SplitConfig = field(default_factory=HashSplit, metadata={"kinds": SPLITS_BY_KIND})
    subsample: int = 1
    max_bad_rows: float = 0.001
    cache: str = ""
    verify: bool = False
    shuffle: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        self.recipe()

    def recipe(self) -> Recipe:
        """What decides the encoded data."""
        return Recipe(
            paths=self.path,
            label=LabelRule(
                self.label, self.positive_from, self.dropped_labels, self.positive_values
            ),
            dense=self.dense,
            log1p=self.log1p,
            standardize=self.standardize,
            categorical=self.categorical,
            multi_valued=self.multi_valued,
            separator=self.separator,
            max_length=self.max_length,
            vocabulary=self.vocabulary,
            split=self.split,
            columns=self.columns,
            delimiter=self.delimiter,
            quoted=self.quoted,
            subsample=self.subsample,
            max_bad_rows=self.max_bad_rows,
        )

    def build(self) -> EncodedClicks:  # noqa: D102
        folder = open_encoded(self.recipe(), self.cache, self.verify)
        return EncodedClicks(folder, self.shuffle, self.seed, self.pooling)
