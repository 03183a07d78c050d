"""What a split promises.

A split may need to see all rows first (how many there are, how their times lie): `observe` gets
every row of the first pass, `assign` is asked in the second. Rows keep their order in a split.
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
        """See rows of the first pass."""

    def finish(self) -> None:  # noqa: B027
        """The first pass is over."""

    @abstractmethod
    def assign(self, rows: Rows) -> Assignment:
        """0 (train), 1 (validation) or 2 (test) for each row; −1 leaves a row out."""


class SplitConfig(ABC):
    """The configuration of a split; it makes the splitter."""

    @abstractmethod
    def build(self) -> Splitter:
        """A splitter that has seen nothing yet."""

    @property
    def test_is_validation(self) -> bool:
        """Whether no row tests, and the validation rows serve for both."""
        return False

    @property
    def number_columns(self) -> tuple[str, ...]:
        """Columns it needs as numbers."""
        return ()

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns it needs as text."""
        return ()


def cut(values: NDArray[Any], cuts: tuple[float, float]) -> Assignment:
    """How many cuts each value has reached; −1 for NaN."""
    assigned = (values >= cuts[0]).astype(np.int8) + (values >= cuts[1]).astype(np.int8)
    return np.where(np.isnan(values), -1, assigned).astype(np.int8)


def require_column(*names: str) -> None:
    """Refuse columns without a name."""
    if "" in names:
        raise ConfigError("a split needs the name of a column, but got an empty one")


def require_finite(name: str, value: float | None) -> None:
    """Refuse a bound that is NaN or infinite."""
    if value is not None and not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, but got {value}")


def require_shares(validation: float, test: float) -> None:
    """Refuse shares that leave a split empty."""
    if not (0 < validation < 1 and 0 < test < 1 and validation + test < 1):
        raise ConfigError(
            "validation and test must be shares above 0 with a sum below 1, "
            f"but got {validation} and {test}"
        )
