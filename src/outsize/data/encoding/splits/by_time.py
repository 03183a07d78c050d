"""A split by time: train on the past, test on the future."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.data.encoding.good_rows import Rows
from outsize.data.encoding.id_counts import KeyCounts
from outsize.data.encoding.splits.base import (
    TEST,
    TRAIN,
    VALIDATION,
    Assignment,
    SplitConfig,
    Splitter,
    cut,
    require_column,
    require_finite,
    require_shares,
)
from outsize.errors import ConfigError, DataError
from outsize.hashing import mix_bits, uniform_at

_MAX_DISTINCT_TIMES = 1 << 22


@dataclass(frozen=True)
class TimeSplit(SplitConfig):
    """Split by a time column: training rows first, then validation rows, the latest rows for test.

    Attributes:
        column: A column of numbers, dates or times; rows without a value are left out. Dates and
            times may be texts: seconds since 1970 are compared.
        validation_from: The first time that is held out. Without it, `validation` and `test` are
            shares of the rows, cut at the nearest gap between two times.
        test_from: The first time of the test set. Without it, rows from `validation_from` on are
            divided in halves.
        halves: How: by the "order" of the rows (the first half is for validation), or by a "hash".
        validation: Share of rows in the validation set.
        test: Share of rows in the test set.
        format: How texts are read, such as "%d.%m.%Y"; empty for ISO 8601 ("2024-01-31 08:00").
    """

    column: str
    validation_from: float | None = None
    test_from: float | None = None
    halves: Literal["order", "hash"] = "order"
    validation: float = 0.1
    test: float = 0.1
    format: str = ""

    def __post_init__(self) -> None:
        require_column(self.column)
        require_finite("validation_from", self.validation_from)
        require_finite("test_from", self.test_from)
        require_shares(self.validation, self.test)
        if self.test_from is None:
            return
        if self.validation_from is None:
            raise ConfigError("test_from needs validation_from: set both")
        if self.test_from <= self.validation_from:
            raise ConfigError(
                f"test_from must be later than validation_from = {self.validation_from:g}, "
                f"but got {self.test_from:g}"
            )

    @property
    def number_columns(self) -> tuple[str, ...]:  # noqa: D102
        return (self.column,)

    @property
    def time_format(self) -> str | None:  # noqa: D102
        return self.format

    def build(self) -> Splitter:  # noqa: D102
        return _TimeShareSplitter(self) if self.validation_from is None else _TimeSplitter(self)


class _TimeSplitter(Splitter):
    def __init__(self, config: TimeSplit) -> None:
        assert config.validation_from is not None
        self._config = config
        self._from = config.validation_from
        self._num_held_out = self._num_assigned = 0

    def observe(self, rows: Rows) -> None:
        self._num_held_out += int((rows.numbers[self._config.column] >= self._from).sum())

    def assign(self, rows: Rows) -> Assignment:
        times = rows.numbers[self._config.column]
        if self._config.test_from is not None:
            return cut(times, (self._from, self._config.test_from))
        late = times >= self._from
        if self._config.halves == "hash":
            second = uniform_at(mix_bits(torch.from_numpy(rows.positions))).numpy() >= 0.5
        else:
            order = self._num_assigned + np.cumsum(late) - 1
            self._num_assigned += int(late.sum())
            second = order >= (self._num_held_out + 1) // 2
        assigned = np.where(late, np.where(second, TEST, VALIDATION), TRAIN)
        return np.where(np.isnan(times), -1, assigned).astype(np.int8)


class _TimeShareSplitter(Splitter):
    """Counts times as sorted 64-bit keys, with coarser keys if there are too many."""

    def __init__(self, config: TimeSplit) -> None:
        self._config = config
        self._counts = KeyCounts()
        self._shift = np.uint64(0)
        self._cut_keys: NDArray[np.uint64] = np.zeros(0, np.uint64)

    def observe(self, rows: Rows) -> None:
        keys, counts = np.unique(self._keys(rows), return_counts=True)
        self._counts.add(keys, counts.astype(np.int64))
        while len(self._counts) > _MAX_DISTINCT_TIMES:
            self._counts.merge()
            if len(self._counts) <= _MAX_DISTINCT_TIMES:
                break
            self._shift += np.uint64(4)
            coarse, old = KeyCounts(), self._counts
            coarse.add(old.keys >> np.uint64(4), old.counts)
            coarse.merge()
            self._counts = coarse

    def finish(self) -> None:
        self._counts.merge()
        keys, counts = self._counts.keys, self._counts.counts
        if not len(keys):
            raise DataError(f"column {self._config.column!r} holds no time in any row")
        before = np.cumsum(counts) - counts
        total = int(counts.sum())
        shares = (1 - self._config.validation - self._config.test, 1 - self._config.test)
        # Rows of equal time stay together: the cut is the nearest gap between two times.
        places = [
            min(int(np.searchsorted(before + counts / 2, total * share)), len(keys) - 1)
            for share in shares
        ]
        self._cut_keys = keys[places]

    def _keys(self, rows: Rows) -> NDArray[np.uint64]:
        """The times as unsigned integers of the same order; rows without a time are left out."""
        times = rows.numbers[self._config.column]
        return _ordered(times[~np.isnan(times)]) >> self._shift

    def assign(self, rows: Rows) -> Assignment:
        times = rows.numbers[self._config.column]
        assigned = np.full(len(times), -1, np.int8)
        keys = self._keys(rows)
        splits = sum((keys >= cut).astype(np.int8) for cut in self._cut_keys)
        assigned[~np.isnan(times)] = splits
        return assigned


def _ordered(times: NDArray[np.float64]) -> NDArray[np.uint64]:
    """The bits of floats as unsigned integers of the same order."""
    bits = (times + 0.0).view(np.uint64)  # −0.0 becomes 0.0
    sign = np.uint64(1 << 63)
    return np.where(bits & sign, ~bits, bits | sign)
