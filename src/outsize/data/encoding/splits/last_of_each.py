"""The split of the MovieLens experiments: the last rows of each user are held out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from outsize.data.encoding.good_rows import Rows
from outsize.data.encoding.splits.base import (
    TEST,
    TRAIN,
    VALIDATION,
    Assignment,
    SplitConfig,
    Splitter,
    require_column,
)
from outsize.data.encoding.text_keys import text_keys


@dataclass(frozen=True)
class LastOfEachSplit(SplitConfig):
    """Hold out the last two rows of each group by an order; ties are in the order of the file.

    The earlier of the two is for validation, the later for the test. A group of one row only has a
    test row, and a group of two has no training rows.

    Attributes:
        group: The column whose values are the groups, such as users.
        order: A column of numbers, dates or times that orders the rows of a group; texts are
            ISO 8601.
        held_out: "split" as above, or "validation" to use both rows for validation and for the
            test.
    """

    group: str
    order: str
    held_out: Literal["split", "validation"] = "split"

    def __post_init__(self) -> None:
        require_column(self.group, self.order)

    @property
    def test_is_validation(self) -> bool:  # noqa: D102
        return self.held_out == "validation"

    @property
    def number_columns(self) -> tuple[str, ...]:  # noqa: D102
        return (self.order,)

    @property
    def time_format(self) -> str | None:  # noqa: D102
        return ""

    @property
    def text_columns(self) -> tuple[str, ...]:  # noqa: D102
        return (self.group,)

    def build(self) -> Splitter:  # noqa: D102
        return _LastOfEachSplitter(self)


class _LastOfEachSplitter(Splitter):
    """Keeps the last two rows of each group, sorted by (group, time, row)."""

    def __init__(self, config: LastOfEachSplit) -> None:
        self._config = config
        self._groups: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._times: NDArray[np.float64] = np.zeros(0)
        self._rows: NDArray[np.int64] = np.zeros(0, np.int64)

    def observe(self, rows: Rows) -> None:
        text = rows.texts[self._config.group]
        keys = np.append(text_keys(text.values), np.uint64(0))[text.codes]
        groups = np.concatenate((self._groups, keys))
        # A row without a time sorts first.
        new_times = np.nan_to_num(rows.numbers[self._config.order], nan=-np.inf)
        times = np.concatenate((self._times, new_times))
        numbers = np.concatenate((self._rows, rows.positions))
        order = np.lexsort((numbers, times, groups))
        groups, times, numbers = groups[order], times[order], numbers[order]
        # A row is dropped if the second row after it is of the same group: two later rows exist.
        is_held_out = np.ones(len(groups), bool)
        is_held_out[:-2] = groups[:-2] != groups[2:]
        self._groups, self._times, self._rows = (
            groups[is_held_out],
            times[is_held_out],
            numbers[is_held_out],
        )

    def finish(self) -> None:
        is_last = np.append(self._groups[:-1] != self._groups[1:], True)[: len(self._groups)]
        splits = np.where(is_last & (self._config.held_out == "split"), TEST, VALIDATION)
        order = np.argsort(self._rows)
        self._rows, self._splits = self._rows[order], splits[order].astype(np.int8)

    def assign(self, rows: Rows) -> Assignment:
        low, high = np.searchsorted(self._rows, (rows.first, rows.first + len(rows)))
        assigned = np.full(len(rows), TRAIN, np.int8)
        assigned[self._rows[low:high] - rows.first] = self._splits[low:high]
        return assigned
