"""The split of the Criteo experiments: the last day is held out."""

from __future__ import annotations

from dataclasses import dataclass

from outsize.data.encoding.good_rows import Rows
from outsize.data.encoding.splits.base import Assignment, SplitConfig, Splitter, cut
from outsize.errors import ConfigError


@dataclass(frozen=True)
class LastDaySplit(SplitConfig):
    """Hold out the last day: its first half for validation, its second half for the test.

    Attributes:
        num_days: With one file, the number of days of equal length it is cut into. With several
            files, each file is a day.
    """

    num_days: int = 7

    def __post_init__(self) -> None:
        if self.num_days < 2:
            raise ConfigError(f"num_days must be >= 2, but got {self.num_days}")

    def build(self) -> Splitter:  # noqa: D102
        return _LastDaySplitter(self)


class _LastDaySplitter(Splitter):
    def __init__(self, config: LastDaySplit) -> None:
        self._num_days = config.num_days
        self._last_file = self._first_of_last = self._num_rows = 0

    def observe(self, rows: Rows) -> None:
        if rows.file > self._last_file:
            self._last_file, self._first_of_last = rows.file, rows.first
        self._num_rows = rows.first + len(rows)

    def assign(self, rows: Rows) -> Assignment:
        start = self._first_of_last
        if self._last_file == 0:
            start = self._num_rows - self._num_rows // self._num_days
        middle = start + (self._num_rows - start + 1) // 2
        return cut(rows.positions, (start, middle))
