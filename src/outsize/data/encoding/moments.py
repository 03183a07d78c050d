"""Mean and standard deviation of numeric columns, accumulated in chunks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MOST_DEVIATIONS = 10.0


class Moments:
    """Mean and standard deviation of the values that are not missing (Chan et al. 1979).

    Args:
        count: How many values were added.
        mean: Their mean.
        squares: The sum of their squared distances from it.
    """

    def __init__(self, count: int = 0, mean: float = 0.0, squares: float = 0.0) -> None:
        self._count, self._mean, self._squares = count, mean, squares

    def state(self) -> tuple[int, float, float]:
        """What the constructor takes, for the values so far."""
        return self._count, self._mean, self._squares

    def add(self, numbers: NDArray[np.float64]) -> None:
        """Add a chunk of values; NaN is a missing value."""
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
        """Subtract the mean and divide by the standard deviation of all added values."""
        deviation = (self._squares / max(1, self._count)) ** 0.5
        return (numbers - self._mean) / (deviation or 1.0)


class SignedLogMoments(Moments):
    """The same of sign(x) · log(1 + |x|), for amounts with a long tail on either side."""

    def add(self, numbers: NDArray[np.float64]) -> None:
        """Add the signed logarithms of a chunk of values."""
        super().add(_signed_log(numbers))

    def standardize(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Standardize the signed logarithms, and limit them to 10 standard deviations."""
        found = super().standardize(_signed_log(numbers))
        return np.clip(found, -_MOST_DEVIATIONS, _MOST_DEVIATIONS)


def _signed_log(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.sign(numbers) * np.log1p(np.abs(numbers)))
