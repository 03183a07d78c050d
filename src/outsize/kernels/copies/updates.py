"""Update copies and what is pending for them in one pass over the gradients of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.kernels.arrays import array, empty
from outsize.kernels.compiled import compiled
from outsize.kernels.copies.passes import CopyLines
from outsize.kernels.rows.in_place import Rule, settings_array, state_arrays
from outsize.kernels.rows.rule_numbers_numba import NO_SQUARES
from outsize.kernels.rows.updates import UpdateRule
from outsize.kernels.threads import num_parts, run_parts

_MODULE = "copies.updates_numba"
_LEAST_NUMBERS = 1 << 14  # per thread


def add_and_update(
    copies: CopyLines,
    state: Mapping[str, Float32[Tensor, "slots _"]],
    rule: UpdateRule,
    slots: Int64[Tensor, " n"],
    gradients: Float32[Tensor, "n dim"],
    ticks: Int64[Tensor, " n"],
    num_workers: int,
    saved_bytes: int,
) -> bool:
    """Add gradients of one batch to what is pending, and apply their mean to the copies.

    Returns false, without a change, if no kernel can. It does what `passes.add_pending` and
    `UpdateRule.update` do after each other, bit for bit, for a rule that merges batches.

    Args:
        copies: The cache.
        state: Optimizer state of the copies.
        rule: The rule.
        slots: A slot per gradient, each once; negative for rows without a copy, left out.
        gradients: The gradients.
        ticks: Their ticks.
        num_workers: Divides the gradients that are applied.
        saved_bytes: Bytes that one update saves.
    """
    found = _compiled(copies, state, rule, gradients)
    if found is None:
        return False
    kernels, settings, kind = found
    squares = copies.squares
    run_parts(
        kernels.add_and_update, num_parts(gradients.numel(), _LEAST_NUMBERS), settings[0], kind,
        float(num_workers), saved_bytes, array(slots.contiguous()), array(gradients),
        array(ticks.contiguous()), array(copies.rows), *state_arrays(state), array(copies.ticks),
        array(copies.pending), empty(0, 1) if squares is None else array(squares),
        array(copies.balance), settings_array(settings[1]),
    )  # fmt: skip
    return True


def apply_pending(
    copies: CopyLines,
    state: Mapping[str, Float32[Tensor, "slots _"]],
    rule: UpdateRule,
    slots: Int64[Tensor, " n"],
    num_workers: int,
) -> bool:
    """Update copies by the mean of what is pending for them, as an owner applies one push.

    Returns false, without a change, if no kernel can. Arguments as for `add_and_update`.
    """
    found = _compiled(copies, state, rule)
    if found is None:
        return False
    kernels, settings, kind = found
    squares = copies.squares
    kernels.apply_pending(
        settings[0], kind, float(num_workers), array(slots.contiguous()), array(copies.rows),
        *state_arrays(state), array(copies.ticks), array(copies.pending),
        empty(0, 1) if squares is None else array(squares), settings_array(settings[1]),
    )  # fmt: skip
    return True


def _compiled(
    copies: CopyLines, state: Mapping[str, Tensor], rule: UpdateRule, *floats: Tensor
) -> tuple[Any, Rule, int] | None:
    """The kernels, the rule for them and the number of what it sums; `None` if they cannot."""
    settings, kind = rule.compiled_rule(), rule.kernel_square()
    if settings is None or kind is None or copies.kernels(*floats, *state.values()) is None:
        return None
    if (kind == NO_SQUARES) != (copies.squares is None) or (kernels := compiled(_MODULE)) is None:
        return None
    return kernels, settings, kind
