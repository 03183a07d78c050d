"""Chunks of rows that passed all checks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from outsize.data.encoding.ids import CodedText


@dataclass(frozen=True)
class Rows:
    """Good rows of one file, in its order.

    Attributes:
        file: Number of the file.
        first: Number of the first row among the good rows of all files.
        labels: 0 or 1.
        numbers: Numeric column → values, NaN if missing.
        texts: Text column → values.
        num_bytes: Approximate number of bytes of the file that were read for them.
    """

    file: int
    first: int
    labels: NDArray[np.uint8]
    numbers: dict[str, NDArray[np.float64]]
    texts: dict[str, CodedText]
    num_bytes: int

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.labels)

    def take(self, mask: NDArray[np.bool_]) -> Rows:
        """The rows selected by a mask."""
        return replace(
            self,
            labels=self.labels[mask],
            numbers={name: values[mask] for name, values in self.numbers.items()},
            texts={name: text.take(mask) for name, text in self.texts.items()},
        )

    @property
    def positions(self) -> NDArray[np.int64]:
        """The numbers of these rows among the good rows of all files."""
        return np.arange(self.first, self.first + len(self))
