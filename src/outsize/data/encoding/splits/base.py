"""The interface of splits into training, validation and test sets.

A split may need facts about all rows first, such as their number or the distribution of their
times: `observe` is called with every row in the first pass, `assign` in the second. Rows keep their
order within a split.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.encoding.good_rows import Rows
from outsize.errors import ConfigError

Assignment = NDArray[np.int8]
TRAIN, VALIDATION, TEST = 0, 1, 2


class Splitter(ABC):
    """Assigns rows to splits."""

    def observe(self, rows: Rows) -> None:  # noqa: B027  most need no first pass
        """Observe rows in the first pass."""

    def finish(self) -> None:  # noqa: B027
        """End the first pass."""

    @abstractmethod
    def assign(self, rows: Rows) -> Assignment:
        """0 (train), 1 (validation) or 2 (test) for each row; −1 leaves a row out."""


class SplitConfig(ABC):
    """The configuration of a split; `build` makes the splitter."""

    @abstractmethod
    def build(self) -> Splitter:
        """A new splitter."""

    @property
    def test_is_validation(self) -> bool:
        """Whether there is no test set, and the validation set is used for both."""
        return False

    @property
    def number_columns(self) -> tuple[str, ...]:
        """The columns that the split needs as numbers."""
        return ()

    @property
    def time_format(self) -> str | None:
        """How times in `number_columns` are written as text; empty for ISO 8601, `None` if not."""
        return None

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns that the split needs as text."""
        return ()


def cut(values: NDArray[Any], cuts: tuple[float, float]) -> Assignment:
    """The number of cuts at or below each value; −1 for NaN."""
    assigned = (values >= cuts[0]).astype(np.int8) + (values >= cuts[1]).astype(np.int8)
    return np.where(np.isnan(values), -1, assigned).astype(np.int8)


def require_column(*names: str) -> None:
    """Raise a `ConfigError` for an empty column name."""
    if "" in names:
        raise ConfigError("a split needs the name of a column, but got an empty one")


def require_finite(name: str, value: float | None) -> None:
    """Raise a `ConfigError` for a value that is NaN or infinite."""
    if value is not None and not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, but got {value}")


def require_shares(validation: float, test: float) -> None:
    """Raise a `ConfigError` for shares that leave a split empty."""
    if not (0 < validation < 1 and 0 < test < 1 and validation + test < 1):
        raise ConfigError(
            "validation and test must be shares above 0 with a sum below 1, "
            f"but got {validation} and {test}"
        )
