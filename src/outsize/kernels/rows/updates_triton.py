"""The update rules of `updates` on CUDA: row, state and clock in one pass, without synchronization.

The number of rows may be one that only the device knows: programs take tiles of rows in turn. The
arithmetic is that of the reference, with correctly rounded roots and quotients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int, Int32, Int64
from torch import Tensor

from outsize.hashing import derive_seed
from outsize.kernels.gather.gather_triton import columns_at_once
from outsize.kernels.launches_triton import ceil_div, launch
from outsize.kernels.launching import num_processors, on_device
from outsize.kernels.rows import rule_numbers_numba
from outsize.kernels.rows.rounding_triton import (
    FLOAT,
    as_float,
    as_words,
    has_format,
    rounded_words,
    rounding_keys,
)

TILE = 512  # numbers of the rows that a program updates at once
WARPS = 1
PROGRAMS_PER_PROCESSOR = 32
_ADAGRAD = tl.constexpr(rule_numbers_numba.ADAGRAD)
_ADAM = tl.constexpr(rule_numbers_numba.ADAM)
_ROW_ADAGRAD = tl.constexpr(rule_numbers_numba.ROW_ADAGRAD)
_SGD = tl.constexpr(rule_numbers_numba.SGD)
_FLOAT = tl.constexpr(FLOAT)


def can_update(rows: Tensor, state: Mapping[str, Tensor]) -> bool:
    """Whether the kernel can update rows of this type, with this state."""
    floats = all(part.dtype == torch.float32 and part.is_contiguous() for part in state.values())
    return has_format(rows) and rows.is_contiguous() and floats


def update_by_triton(
    rule: int,
    settings: Float32[Tensor, " settings"],
    rows: Float[Tensor, "rows dim"],
    state: Mapping[str, Float[Tensor, "rows _"]],
    clocks: Int32[Tensor, " rows"],
    places: Int[Tensor, " n"],
    gradients: Float32[Tensor, "_ dim"],
    *,
    seed: int,
    first_id: int,
    ticks: Int64[Tensor, " n"] | None = None,
    squares: Float32[Tensor, "n _"] | None = None,
    runs: Int32[Tensor, " _"] | None = None,
    is_bad: Int32[Tensor, " 1"] | None = None,
) -> Float32[Tensor, " programs"]:
    """Update rows of a table, their state and clocks in place.

    Args:
        rule: The number of the rule.
        settings: Its settings.
        rows: All rows of the table.
        state: Their state.
        clocks: Their clocks.
        places: The rows to update, each once.
        gradients: Their gradients.
        seed: The seed of the store.
        first_id: The store id of the first row.
        ticks: The increments of the clocks; 1 by default.
        squares: What replaces the squared gradients, if anything.
        runs: If given, the last one is the number of rows to update − 1; otherwise it is that of
            `places`.
        is_bad: If given and not 0, nothing is updated.

    Returns:
        Numbers whose sum is that of the squares of all gradients; NaN if nothing was updated.
    """
    most, dim = places.shape[0], rows.shape[1]
    width = columns_at_once(dim)
    lines = max(TILE // width, 1)
    tiles = max(ceil_div(most, lines), 1)
    programs = min(tiles, num_processors(rows.device) * PROGRAMS_PER_PROCESSOR)
    words, form = as_words(rows)
    norms = torch.empty(programs, device=rows.device)
    parts = [*state.values(), norms, norms, norms][:3]
    with on_device(rows):
        launch(
            update_rows_kernel, (programs,),
            (words, *parts, clocks, places, gradients, norms if squares is None else squares,
             clocks if ticks is None else ticks, clocks if runs is None else runs,
             clocks if is_bad is None else is_bad, settings, norms,
             most if runs is None else runs.shape[0], derive_seed(seed, "row rounding"), first_id),
            RULE=rule, FORMAT=form, DIM=dim, WIDTH=width, LINES=lines,
            HAS_SQUARES=squares is not None, HAS_TICKS=ticks is not None,
            HAS_RUNS=runs is not None, HAS_FLAG=is_bad is not None, num_warps=WARPS,
        )  # fmt: skip
    return norms


@triton.jit
@no_type_check
def _power(base, exponents):
    """The base to whole powers, as float32."""
    return tl.exp(tl.log(base.to(tl.float64)) * exponents.to(tl.float64))


@triton.jit(do_not_specialize=["num", "seed", "first_id"])
@no_type_check
def update_rows_kernel(
    rows, first_state, second_state, third_state, clocks, places, gradients, squares, ticks, runs,
    is_bad, settings, norms, num, seed, first_id,
    RULE: tl.constexpr, FORMAT: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    LINES: tl.constexpr, HAS_SQUARES: tl.constexpr, HAS_TICKS: tl.constexpr,
    HAS_RUNS: tl.constexpr, HAS_FLAG: tl.constexpr,
):  # fmt: skip
    """Update tiles of rows, one after the other.

    Several threads hold the same clock, sum or count: all must have read it before one writes it.
    """
    rate = tl.load(settings)
    if HAS_RUNS:
        num = tl.load(runs + num - 1) + 1
    norm = 0.0
    if HAS_FLAG:
        flaws = tl.load(is_bad)
        num = tl.where(flaws == 0, num, 0)
        norm = tl.where(flaws == 0, 0.0, float("nan"))
    for first in range(tl.program_id(0) * LINES, num, tl.num_programs(0) * LINES):
        line = first + tl.arange(0, LINES)
        is_inside = line < num
        row = tl.load(places + line, mask=is_inside, other=0).to(tl.int64)
        tick = tl.full((LINES,), 1, tl.int64)
        if HAS_TICKS:
            tick = tl.load(ticks + line, mask=is_inside, other=0)
        clock = tl.load(clocks + row, mask=is_inside, other=0) + tick.to(tl.int32)
        if RULE == _ROW_ADAGRAD:
            total = tl.load(first_state + row, mask=is_inside, other=1.0)
        if RULE == _ADAM:
            count = tl.load(third_state + row, mask=is_inside, other=1.0) + 1.0
        tl.debug_barrier()
        tl.store(clocks + row, clock, mask=is_inside)
        key = row
        if FORMAT != _FLOAT:
            key = rounding_keys(seed.to(tl.int64), row + first_id, clock.to(tl.int64), tick)
        square = tl.zeros((LINES,), tl.float32)
        divisor = square
        correction_1 = square
        correction_2 = square
        if RULE == _ROW_ADAGRAD:
            for start in tl.static_range(0, DIM, WIDTH):
                column = start + tl.arange(0, WIDTH)
                mask = is_inside[:, None] & (column < DIM)[None, :]
                address = gradients + line.to(tl.int64)[:, None] * DIM + column[None, :]
                gradient = tl.load(address, mask=mask, other=0.0)
                square += tl.sum(gradient * gradient, axis=1)
            norm += tl.sum(square, axis=0)
            if HAS_SQUARES:
                mean = tl.load(squares + line, mask=is_inside, other=0.0)
            else:
                mean = square / DIM
            total += mean
            tl.store(first_state + row, total, mask=is_inside)
            divisor = tl.sqrt_rn(total) + tl.load(settings + 1)
        if RULE == _ADAM:
            tl.store(third_state + row, count, mask=is_inside)
            correction_1 = (1.0 - _power(tl.load(settings + 2), count)).to(tl.float32)
            correction_2 = (1.0 - _power(tl.load(settings + 4), count)).to(tl.float32)
        for start in tl.static_range(0, DIM, WIDTH):
            column = start + tl.arange(0, WIDTH)
            mask = is_inside[:, None] & (column < DIM)[None, :]
            place = line.to(tl.int64)[:, None] * DIM + column[None, :]
            target = row[:, None] * DIM + column[None, :]
            gradient = tl.load(gradients + place, mask=mask, other=0.0)
            before = as_float(tl.load(rows + target, mask=mask, other=0), FORMAT)
            if RULE != _ROW_ADAGRAD:
                norm += tl.sum(tl.sum(gradient * gradient, axis=1), axis=0)
            if RULE == _SGD:
                after = before - rate * gradient
            elif RULE == _ROW_ADAGRAD:
                after = before + tl.div_rn(-rate * gradient, divisor[:, None] + 0.0 * gradient)
            elif RULE == _ADAGRAD:
                fresh = gradient * gradient
                if HAS_SQUARES:
                    fresh = tl.load(squares + place, mask=mask, other=0.0)
                sums = tl.load(first_state + target, mask=mask, other=1.0) + fresh
                tl.store(first_state + target, sums, mask=mask)
                after = before + tl.div_rn(
                    -rate * gradient, tl.sqrt_rn(sums) + tl.load(settings + 1)
                )
            else:
                mean = tl.load(first_state + target, mask=mask, other=0.0)
                mean += tl.load(settings + 3) * (gradient - mean)
                variance = tl.load(second_state + target, mask=mask, other=0.0)
                variance *= tl.load(settings + 4)
                variance += tl.load(settings + 5) * gradient * gradient
                tl.store(first_state + target, mean, mask=mask)
                tl.store(second_state + target, variance, mask=mask)
                root = tl.sqrt_rn(tl.div_rn(variance, correction_2[:, None] + 0.0 * variance))
                step = tl.div_rn(mean, correction_1[:, None] + 0.0 * mean)
                after = before + tl.div_rn(-rate * step, root + tl.load(settings + 1))
            if FORMAT == _FLOAT:
                tl.store(rows + target, after, mask=mask)
            else:
                words = rounded_words(after, key, column, FORMAT)
                tl.store(rows + target, words, mask=mask)
    tl.store(norms + tl.program_id(0), norm)
