"""Updates of rows in place by compiled kernels: row, state and clock in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outsize.kernels.arrays import array, empty, is_plain_float
from outsize.kernels.compiled import compiled
from outsize.kernels.threads import num_parts, run_parts

_LEAST_NUMBERS = 1 << 14  # per thread


Rule = tuple[int, tuple[float, ...]]
"""The number of a rule (`rule_numbers_numba`), and its settings."""


def update_in_place(
    rule: Rule,
    rows: Tensor,
    state: Mapping[str, Tensor],
    clocks: Tensor,
    places: Tensor,
    gradients: Tensor,
    ticks: Tensor,
    squares: Tensor | None,
) -> bool:
    """Update rows by a compiled kernel; returns false, without a change, if none can be used.

    Args:
        rule: The rule.
        rows: All rows of a table.
        state: Their optimizer state.
        clocks: Their clocks, int32.
        places: The rows to update, each once.
        gradients: Their gradients.
        ticks: The increments of their clocks.
        squares: What replaces their squared gradients, if anything.
    """
    gradients = gradients.contiguous()
    squares = None if squares is None else squares.contiguous()
    floats = [rows, gradients, *state.values(), *([] if squares is None else [squares])]
    if not is_plain_float(*floats):
        return False
    kernels = compiled("rows.updates_numba")
    if kernels is None:
        return False
    number, settings = rule
    run_parts(
        kernels.update_rows, num_parts(gradients.numel(), _LEAST_NUMBERS), number, array(rows),
        *state_arrays(state), array(clocks), array(places.contiguous()), array(gradients),
        empty(0, 1) if squares is None else array(squares), array(ticks.contiguous()),
        settings_array(settings),
    )  # fmt: skip
    return True


def state_arrays(state: Mapping[str, Tensor]) -> list[Any]:
    """The state of a rule as the three arrays that kernels take; unused ones have no lines."""
    found = [array(part) for part in state.values()]
    return found + [empty(0, 1)] * (3 - len(found))


def settings_array(settings: tuple[float, ...]) -> Any:
    """The settings of a rule as an array."""
    return np.array(settings, dtype=np.float32)


def mean_squares(gradients: Tensor) -> Tensor | None:
    """The mean of the squares of each line; `None` if no compiled kernel can be used."""
    if not is_plain_float(gradients):
        return None
    kernels = compiled("rows.updates_numba")
    if kernels is None:
        return None
    means = torch.empty(gradients.shape[0], 1)
    kernels.mean_squares(array(gradients), array(means))
    return means


def step_in_place(
    rule: Rule,
    rows: Tensor,
    state: Mapping[str, Tensor],
    gradients: Tensor,
    squares: Tensor | None,
) -> bool:
    """`update_in_place` for all lines of compact tensors, which have no clocks."""
    n = rows.shape[0]
    none = torch.zeros(n, dtype=torch.int64)
    return rows.device.type == "cpu" and update_in_place(
        rule, rows, state, none.int(), torch.arange(n), gradients, none, squares
    )
