"""Gradients summed by row on CUDA, in an order that depends on the batch alone.

The sorted occurrences of a batch are cut into chunks of equal size, whatever their rows: a row
with very many occurrences is cut as well. A program sums several chunks side by side, each in
order. What a chunk holds of a row that an earlier one began is carried: it is written to a line of
its own, and added afterwards. Groups of chunks that one row fills are added first, so a hot row
takes few steps.
There are no atomic additions of floats, and no sizes that only the device knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int, Int32
from torch import Tensor

from outsize.kernels.distinct.distinct import Runs
from outsize.kernels.gather.gather_triton import columns_at_once
from outsize.kernels.launches_triton import ceil_div, launch
from outsize.kernels.launching import on_device

CHUNK = 32  # occurrences that are summed in order
GROUP = 64  # chunks that are added before others, if one row fills them
TILE = 256  # numbers of the lines that a warp sums at once
SHORT = 8  # carried lines of a row that are added side by side with other rows


@dataclass(frozen=True)
class Totals:
    """Σ of the gradients of each distinct row of a batch, of which there may be fewer than lines.

    Attributes:
        lines: The sums of the distinct rows, ascending, and then memory of the kernels.
        keys: The distinct rows.
        starts: Where the occurrences of each begin in the sorted batch, and those of the last end.
        runs: As `Runs.runs`; the last one is the number of distinct rows − 1.
    """

    lines: Float32[Tensor, "_ dim"]
    keys: Int[Tensor, " _"]
    starts: Int32[Tensor, " _"]
    runs: Int32[Tensor, " n"]


def sum_by_triton(
    gradients: Float[Tensor, "lines dim"],
    found: Runs,
    num_rows: int,
    is_bad: Int32[Tensor, " 1"],
    lines: Int32[Tensor, " n"] | None = None,
    scales: Float32[Tensor, " n"] | None = None,
) -> Totals:
    """Sum the gradients of each distinct row.

    Args:
        gradients: One line per occurrence, or those that `lines` names.
        found: The occurrences, sorted; at least one.
        num_rows: At most so many rows are distinct.
        is_bad: Set to 1 if a sum is NaN or infinite; never set to 0.
        lines: The line of each occurrence.
        scales: A factor of each occurrence.
    """
    num, dim = found.num, gradients.shape[1]
    width = columns_at_once(dim)
    most = min(num, num_rows)
    num_chunks = ceil_div(num, CHUNK)
    num_groups = num // (CHUNK * GROUP)  # whole ones
    totals = torch.empty(most + num_chunks + num_groups, dim, device=gradients.device)
    keys = torch.empty(most, dtype=found.keys.dtype, device=gradients.device)
    starts = torch.empty(most + 1, dtype=torch.int32, device=gradients.device)
    lanes = max(TILE // width, 1)
    parts = ceil_div(dim, width)
    warps = max(width * lanes // TILE, 1)
    with on_device(gradients):
        launch(
            sum_chunks_kernel, (ceil_div(num_chunks, lanes), parts),
            (gradients, found.keys, found.order, found.runs,
             found.order if lines is None else lines, totals if scales is None else scales,
             totals, keys, starts, is_bad, num, most),
            DIM=dim, WIDTH=width, CHUNK=CHUNK, LANES=lanes, HAS_LINES=lines is not None,
            HAS_SCALES=scales is not None, num_warps=warps,
        )  # fmt: skip
        if num_groups:
            launch(
                sum_groups_kernel, (num_groups, parts),
                (totals, found.runs, most, num_chunks),
                DIM=dim, WIDTH=width, CHUNK=CHUNK, GROUP=GROUP, LANES=lanes, num_warps=warps,
            )  # fmt: skip
        if num_chunks > 1:
            launch(
                add_carried_kernel, (ceil_div(num_chunks - 1, lanes), parts),
                (totals, found.runs, starts, is_bad, num, most, num_chunks),
                DIM=dim, WIDTH=width, CHUNK=CHUNK, GROUP=GROUP, LANES=lanes, SHORT=SHORT,
                num_warps=warps,
            )  # fmt: skip
    return Totals(totals, keys, starts, found.runs)


@triton.jit(do_not_specialize=["num", "num_totals"])
@no_type_check
def sum_chunks_kernel(
    gradients, sorted_keys, order, runs, line_of, scales, totals, keys, starts, is_bad, num,
    num_totals,
    DIM: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, LANES: tl.constexpr,
    HAS_LINES: tl.constexpr, HAS_SCALES: tl.constexpr,
):  # fmt: skip
    """Sum the rows of several chunks, one in each lane.

    Line `num_totals + c` of `totals` is carried by chunk c.
    """
    chunk = tl.program_id(0) * LANES + tl.arange(0, LANES)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    in_dim = (column < DIM)[None, :]
    first = chunk * CHUNK
    run = tl.load(runs + first, mask=first < num, other=-1)
    before = tl.load(runs + first - 1, mask=(first > 0) & (first < num), other=-1)
    source = tl.load(order + first, mask=first < num, other=0)
    has_begun = before > run  # nowhere
    total = tl.zeros((LANES, WIDTH), tl.float32)
    check = tl.zeros((LANES, WIDTH), tl.float32)
    for step in range(CHUNK):
        place = first + step
        is_inside = place < num
        line = source.to(tl.int64)
        if HAS_LINES:
            line = tl.load(line_of + source, mask=is_inside, other=0).to(tl.int64)
        address = gradients + line[:, None] * DIM + column[None, :]
        value = tl.load(
            address, mask=is_inside[:, None] & in_dim, other=0.0, eviction_policy="evict_first"
        ).to(tl.float32)
        if HAS_SCALES:
            value *= tl.load(scales + source, mask=is_inside, other=0.0)[:, None]
        after = place + 1
        next_run = tl.load(runs + after, mask=after < num, other=-1)
        next_source = tl.load(order + after, mask=after < num, other=0)
        is_new = is_inside & (run != before)
        has_begun = has_begun | is_new
        total = tl.where(is_new[:, None], value, total + value)
        check += total * 0.0  # NaN if any sum is NaN or infinite
        is_end = is_inside & ((next_run != run) | (step == CHUNK - 1))
        target = tl.where(has_begun, run, num_totals + chunk).to(tl.int64)
        tl.store(
            totals + target[:, None] * DIM + column[None, :], total, mask=is_end[:, None] & in_dim
        )
        key = tl.load(sorted_keys + place, mask=is_new, other=0)
        tl.store(keys + run, key, mask=is_new)
        tl.store(starts + run, place, mask=is_new)
        tl.store(starts + run + 1, num, mask=after == num)
        before = run
        run = next_run
        source = next_source
    flaws = tl.sum(tl.sum((check != check).to(tl.int32), axis=1), axis=0)
    tl.store(is_bad, 1, mask=flaws > 0)


@triton.jit(do_not_specialize=["num_totals", "num_chunks"])
@no_type_check
def sum_groups_kernel(
    totals, runs, num_totals, num_chunks,
    DIM: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Add what the chunks of a group carried, if one row that began before it fills the group.

    Line `num_totals + num_chunks + g` of `totals` is that of group g.
    """
    group = tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    in_dim = (column < DIM)[None, :]
    first = group * (GROUP * CHUNK)
    before = tl.load(runs + first - 1, mask=first > 0, other=-1)
    last = tl.load(runs + first + (GROUP * CHUNK - 1))
    if before == last:
        total = tl.zeros((LANES, WIDTH), tl.float32)
        for step in range(0, GROUP, LANES):
            within = step + tl.arange(0, LANES)
            line = (num_totals + group * GROUP + within).to(tl.int64)
            mask = (within < GROUP)[:, None] & in_dim
            total += tl.load(totals + line[:, None] * DIM + column[None, :], mask=mask, other=0.0)
        target = totals + (num_totals + num_chunks + group).to(tl.int64) * DIM + column
        tl.store(target, tl.sum(total, axis=0), mask=column < DIM)


@triton.jit
@no_type_check
def _sum_of_lines(
    totals, first, stop, column, DIM: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr
):
    """The sum of lines `first` to `stop − 1`, in an order that depends on their number alone."""
    total = tl.zeros((LANES, WIDTH), tl.float32)
    for step in range(first, stop, LANES):
        line = step + tl.arange(0, LANES)
        mask = (line < stop)[:, None] & (column < DIM)[None, :]
        address = totals + line.to(tl.int64)[:, None] * DIM + column[None, :]
        total += tl.load(address, mask=mask, other=0.0)
    return tl.sum(total, axis=0)


@triton.jit(do_not_specialize=["num", "num_totals", "num_chunks"])
@no_type_check
def add_carried_kernel(
    totals, runs, starts, is_bad, num, num_totals, num_chunks,
    DIM: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
    LANES: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """Add what was carried to the sums of the rows that begin in several chunks."""
    chunk = tl.program_id(0) * LANES + tl.arange(0, LANES)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    in_dim = (column < DIM)[None, :]
    edge = (chunk + 1) * CHUNK
    run = tl.load(runs + edge, mask=edge < num, other=0)
    begin = tl.load(starts + run, mask=edge < num, other=-1)
    is_first = (edge < num) & (begin >= edge - CHUNK) & (begin < edge)
    end = tl.load(starts + run + 1, mask=is_first, other=0)
    count = tl.where(is_first, (end - 1) // CHUNK - chunk, 0)
    most = tl.max(count, axis=0)
    if most > 0:
        is_short = is_first & (count <= SHORT)
        mask = is_short[:, None] & in_dim
        target = totals + run.to(tl.int64)[:, None] * DIM + column[None, :]
        total = tl.load(target, mask=mask, other=0.0)
        carried = totals + (num_totals + chunk).to(tl.int64)[:, None] * DIM + column[None, :]
        for step in range(1, tl.minimum(most, SHORT) + 1):
            has_more = is_short & (step <= count)
            total += tl.load(carried + step * DIM, mask=has_more[:, None] & in_dim, other=0.0)
        tl.store(target, total, mask=mask)
        flaws = tl.sum(tl.sum((total * 0.0 != 0.0).to(tl.int32), axis=1), axis=0)
        tl.store(is_bad, 1, mask=flaws > 0)
    if most > SHORT:
        for lane in range(LANES):
            own = tl.program_id(0) * LANES + lane
            limit = (own + 1) * CHUNK
            hot = tl.load(runs + limit, mask=limit < num, other=0)
            start = tl.load(starts + hot, mask=limit < num, other=-1)
            begins_here = (limit < num) & (start >= limit - CHUNK) & (start < limit)
            stop = tl.load(starts + hot + 1, mask=begins_here, other=0)
            last = tl.where(begins_here, (stop - 1) // CHUNK, own)
            if last - own > SHORT:
                first_group = (own + GROUP) // GROUP
                stop_group = stop // (GROUP * CHUNK)
                has_groups = first_group < stop_group
                middle = tl.where(has_groups, first_group * GROUP, last + 1)
                resumed = tl.where(has_groups, stop_group * GROUP, last + 1)
                stop_group = tl.where(has_groups, stop_group, first_group)
                groups = num_totals + num_chunks
                line = totals + hot.to(tl.int64) * DIM + column
                whole = tl.load(line, mask=column < DIM, other=0.0)
                whole += _sum_of_lines(
                    totals, num_totals + own + 1, num_totals + middle, column, DIM, WIDTH, LANES
                )
                whole += _sum_of_lines(
                    totals, groups + first_group, groups + stop_group, column, DIM, WIDTH, LANES
                )
                whole += _sum_of_lines(
                    totals, num_totals + resumed, num_totals + last + 1, column, DIM, WIDTH, LANES
                )
                tl.store(line, whole, mask=column < DIM)
                mistakes = tl.sum((whole * 0.0 != 0.0).to(tl.int32), axis=0)
                tl.store(is_bad, 1, mask=mistakes > 0)
