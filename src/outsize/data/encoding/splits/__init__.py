"""Splits of rows into training, validation and test sets."""

from outsize.data.encoding.splits.base import SplitConfig
from outsize.data.encoding.splits.by_column import ColumnSplit
from outsize.data.encoding.splits.by_hash import HashSplit
from outsize.data.encoding.splits.by_time import TimeSplit
from outsize.data.encoding.splits.last_day import LastDaySplit
from outsize.data.encoding.splits.last_of_each import LastOfEachSplit

SPLITS_BY_KIND: dict[str, type[SplitConfig]] = {
    "hash": HashSplit,
    "column": ColumnSplit,
    "time": TimeSplit,
    "last-day": LastDaySplit,
    "last-of-each": LastOfEachSplit,
}

__all__ = [
    "SPLITS_BY_KIND",
    "ColumnSplit",
    "HashSplit",
    "LastDaySplit",
    "LastOfEachSplit",
    "SplitConfig",
    "TimeSplit",
]
