"""Mean and deviation of numeric columns, learned a chunk at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Moments:
    """Mean and standard deviation of what is not missing, added up in chunks (Chan et al. 1979)."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._squares = 0.0

    def add(self, numbers: NDArray[np.float64]) -> None:
        """See some more; NaN is missing."""
        present = numbers[~np.isnan(numbers)]
        if not len(present):
            return
        mean = float(present.mean())
        gap, total = mean - self._mean, self._count + len(present)
        self._squares += float(((present - mean) ** 2).sum())
        self._squares += gap**2 * self._count * len(present) / total
        self._mean += gap * len(present) / total
        self._count = total

    def standardize(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers less the mean of all that was seen, over its standard deviation."""
        deviation = (self._squares / max(1, self._count)) ** 0.5
        return (numbers - self._mean) / (deviation or 1.0)
