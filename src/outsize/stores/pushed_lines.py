"""An update as the addresses of its lines, so that lines from several tensors are never joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from outsize.contracts import RowUpdate
from outsize.kernels.arrays import array

_NO_FLAGS, _NO_ADDRESSES = np.empty(0, bool), np.empty(0, np.int64)


@dataclass(frozen=True)
class PushedLines:
    """An update, for compiled kernels.

    Attributes:
        ids: Store ids, ascending, each once.
        ticks: Number of batches in each sum.
        exact: Rows to send by the finer wire; empty for none.
        lines: Addresses of the gradients.
        squares: Addresses of the squares, 0 where they are those of the gradient; empty if no row
            has others.
        is_sum: Whether it is the sum of several updates, so that gradients are 0 + their lines.
        held: The tensors that lines are in.
    """

    ids: Any
    ticks: Any
    exact: Any
    lines: Any
    squares: Any
    is_sum: bool
    held: Sequence[Tensor]

    @classmethod
    def of(cls, update: RowUpdate) -> PushedLines:
        """An update of one group, whose gradients and squares are contiguous."""
        gradients = update.gradients[0]
        squares = None if update.squares is None else update.squares[0]
        held = [gradients] if squares is None else [gradients, squares]
        return cls(
            array(update.ids.contiguous()),
            array(update.ticks.contiguous()),
            _NO_FLAGS if update.exact is None else array(update.exact.contiguous()),
            line_addresses(gradients),
            _NO_ADDRESSES if squares is None else line_addresses(squares),
            False,
            held,
        )


def line_addresses(lines: Tensor) -> Any:
    """The address of each line of a contiguous tensor of float32."""
    num, width = lines.shape
    return np.arange(num, dtype=np.int64) * (4 * width) + lines.data_ptr()
