"""Click data in CSV, TSV or Parquet files, described in the run file."""

from __future__ import annotations

from dataclasses import dataclass, field

from outsize.bounds import require_text
from outsize.data.encoded_config import EncodedConfig
from outsize.data.encoding import LabelRule, Recipe
from outsize.data.encoding.splits import SPLITS_BY_KIND, HashSplit, SplitConfig
from outsize.spec import Pooling

_COLUMNS = (
    "dense", "log1p", "standardize", "signed_log", "categorical", "multi_valued", "columns",
)  # fmt: skip


@dataclass(frozen=True)
class TabularConfig(EncodedConfig):
    """Any table of examples.

    Attributes:
        path: Files or patterns, in the order they are read. `.parquet` and `.pq` are Parquet,
            everything else is text with a header, compressed if its name ends in `.gz`.
        label: Column of the label, 0 or 1.
        positive_from: For numeric labels: values from this one on are 1, others 0.
        positive_values: For text labels: these values are 1, others 0.
        dropped_labels: Rows with these numeric labels are left out.
        dense: Numeric columns used unchanged; missing values become 0.
        log1p: Numeric columns used as log(x + 1); missing and negative values become 0.
        standardize: Numeric columns that are standardized: mean 0, standard deviation 1; missing
            values become 0.
        signed_log: Numeric columns used as sign(x) · log(1 + |x|), standardized and limited to 10
            standard deviations; missing values become 0.
        categorical: Columns with one value per row; a missing value is the unknown id.
        multi_valued: Columns with several values per row, which become bags.
        separator: Separator between the values of a multi-valued column.
        max_length: Maximum number of values per bag, the first ones; 0 for no limit.
        missing: Texts that stand for a missing value in any column, such as "NA"; besides empty
            ones.
        decimal: What separates the decimals of numbers in texts, "." or ","; with ",", thousands
            may be marked by a point or a space (1.234,5).
        pooling: How bags are pooled: "sum", "mean" or "max".
        columns: Names of the columns of text files without a header.
        delimiter: Between columns; by default a comma for `.csv` and a tab for other text.
        quoted: Whether values of a text file may be quoted.
        split: How rows are divided into training, validation and test sets.
        subsample: Keep every n-th row.
    """

    path: tuple[str, ...]
    label: str
    positive_from: float | None = None
    positive_values: tuple[str, ...] = ()
    dropped_labels: tuple[float, ...] = ()
    dense: tuple[str, ...] = ()
    log1p: tuple[str, ...] = ()
    standardize: tuple[str, ...] = ()
    signed_log: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    multi_valued: tuple[str, ...] = ()
    separator: str = "|"
    max_length: int = 0
    missing: tuple[str, ...] = ()
    decimal: str = "."
    pooling: Pooling = "sum"
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    quoted: bool = True
    split: SplitConfig = field(default_factory=HashSplit, metadata={"kinds": SPLITS_BY_KIND})
    subsample: int = 1

    def __post_init__(self) -> None:
        require_text(self, "path", "label", *_COLUMNS)
        super().__post_init__()

    def recipe(self) -> Recipe:  # noqa: D102
        label = LabelRule(self.label, self.positive_from, self.dropped_labels, self.positive_values)
        return Recipe.of(self, paths=self.path, label=label)

    def bag_pooling(self) -> Pooling:  # noqa: D102
        return self.pooling
