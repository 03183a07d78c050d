"""A split given by a column of the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outsize.data.encoding.good_rows import Rows
from outsize.data.encoding.splits.base import (
    Assignment,
    SplitConfig,
    Splitter,
    require_column,
)
from outsize.errors import ConfigError


@dataclass(frozen=True)
class ColumnSplit(SplitConfig):
    """Split by the values of a column, compared as text; rows with other values are left out.

    Attributes:
        column: The column.
        train: Values of training rows.
        validation: Values of validation rows.
        test: Values of test rows.
    """

    column: str
    train: tuple[str, ...] = ("train",)
    validation: tuple[str, ...] = ("validation",)
    test: tuple[str, ...] = ("test",)

    def __post_init__(self) -> None:
        require_column(self.column)
        values = (*self.train, *self.validation, *self.test)
        if len(set(values)) < len(values):
            raise ConfigError("train, validation and test must share no value of the column")

    @property
    def text_columns(self) -> tuple[str, ...]:  # noqa: D102
        return (self.column,)

    def build(self) -> Splitter:  # noqa: D102
        return _ColumnSplitter(self)


class _ColumnSplitter(Splitter):
    def __init__(self, config: ColumnSplit) -> None:
        self._column = config.column
        groups = enumerate((config.train, config.validation, config.test))
        self._splits = {value: split for split, values in groups for value in values}

    def assign(self, rows: Rows) -> Assignment:
        text = rows.texts[self._column]
        splits = [self._splits.get(value, -1) for value in text.values.to_pylist()]
        assigned: Assignment = np.array([*splits, -1], np.int8)[text.codes]
        return assigned
