"""A random split by a hash, which needs no memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from outsize.data.encoding.good_rows import Rows
from outsize.data.encoding.splits.base import (
    Assignment,
    SplitConfig,
    Splitter,
    cut,
    require_shares,
)
from outsize.data.encoding.text_keys import text_keys
from outsize.hashing import derive_seed, mix_bits, uniform_at


@dataclass(frozen=True)
class HashSplit(SplitConfig):
    """Split randomly by a hash of the row number, or of a column, to keep equal values together.

    Attributes:
        column: The column; empty for the row number.
        validation: Share of rows, or of values, in the validation set.
        test: Share in the test set.
        seed: Seed of the hash.
    """

    column: str = ""
    validation: float = 0.1
    test: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        require_shares(self.validation, self.test)

    @property
    def text_columns(self) -> tuple[str, ...]:  # noqa: D102
        return (self.column,) if self.column else ()

    def build(self) -> Splitter:  # noqa: D102
        return _HashSplitter(self)


class _HashSplitter(Splitter):
    def __init__(self, config: HashSplit) -> None:
        self._config = config
        self._seed = derive_seed(config.seed, "split")

    def assign(self, rows: Rows) -> Assignment:
        keys = rows.positions
        if self._config.column:
            text = rows.texts[self._config.column]
            keys = np.append(text_keys(text.values).view(np.int64), 0)[text.codes]
        drawn = uniform_at(mix_bits(torch.from_numpy(keys) + self._seed), torch.float64).numpy()
        config = self._config
        cuts = (1 - config.validation - config.test, 1 - config.test)
        return cut(drawn, cuts)
