"""What a step does to cached copies of rows, each in one pass: add, settle, refresh, read, check.

A copy is a line of several tensors, found by its slot. Where slots are negative there is no copy.
The compiled passes, for float32 rows on the CPU, give the same bits as the torch code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Float32, Int32, Int64
from torch import Tensor

from outsize.kernels.arrays import array, empty, is_plain_float, scratch
from outsize.kernels.available import uses_triton
from outsize.kernels.compiled import compiled
from outsize.kernels.directory.slots import is_large

MOST_COLUMNS = 8192  # of a line that a Triton kernel holds at once


@dataclass(frozen=True)
class CopyLines:
    """The tensors of a cache that passes work on, one line per slot.

    Attributes:
        rows: The copies.
        clocks: Clocks of their owners' rows when they were read; −1 if a copy is not valid.
        ticks: Batches in the pending updates.
        pending: Pending gradients.
        squares: Pending squares, if the rule sums any.
        leftover: Whether a rounding error alone is pending.
        checks: How often a copy was checked with its owner.
        balance: Bytes that the copy has saved.
    """

    rows: Float[Tensor, "slots dim"]
    clocks: Int64[Tensor, " slots"]
    ticks: Int32[Tensor, " slots"]
    pending: Float32[Tensor, "slots dim"]
    squares: Float32[Tensor, "slots _"] | None
    leftover: Bool[Tensor, " slots"]
    checks: Int32[Tensor, " slots"]
    balance: Int64[Tensor, " slots"]

    def kernels(self, *floats: Tensor) -> Any:
        """The compiled passes; `None` if torch must do it. Other floats must be float32, too."""
        if not (is_large(self.rows.shape[0]) and is_plain_float(self.rows, *floats)):
            return None
        return compiled("copies.passes_numba")

    def uses_triton(self, *floats: Tensor) -> bool:
        """Whether Triton kernels do it. Other floats must be float32."""
        is_float = all(part.dtype == torch.float32 for part in floats)
        return is_float and self.rows.shape[1] <= MOST_COLUMNS and uses_triton(self.rows, *floats)


@dataclass(frozen=True)
class Added:
    """The lines of an update whose rows have copies.

    Attributes:
        slots: Their slots.
        ticks: Their ticks.
        gradients: Their gradients, divided by a number, or else all that is pending; overwritten
            by the next pass of this thread.
        index: Their places in the update; `None` for all.
    """

    slots: Int64[Tensor, " k"]
    ticks: Int64[Tensor, " k"]
    gradients: Float32[Tensor, "k dim"]
    index: Int64[Tensor, " k"] | None


def add_pending(
    copies: CopyLines,
    slots: Int64[Tensor, " n"],
    gradients: Float32[Tensor, "n dim"],
    ticks: Int64[Tensor, " n"],
    squares: Float32[Tensor, "n _"] | None,
    divisor: int | None,
    saved_bytes: int,
    places: Int64[Tensor, " k"] | None = None,
) -> Added:
    """Add gradients and squares to what is pending for copies; ticks are left to the caller.

    Args:
        copies: The cache.
        slots: A slot per gradient, each once.
        gradients: What to add.
        ticks: Batches in each gradient.
        squares: What to add to the squares, if there are any.
        divisor: Divides the gradients that are returned; `None` to return what is pending.
        saved_bytes: Bytes that one update saves.
        places: Where slots are not negative, ascending, if the caller knows it.
    """
    n, dim = gradients.shape
    kernels = copies.kernels(gradients, *([] if squares is None else [squares]))
    if kernels is None:
        return _add_by_torch(copies, slots, gradients, ticks, squares, divisor, saved_bytes, places)
    found = scratch("cached_gradients", n * dim).view(n, dim)
    own, counted, index = (torch.empty(n, dtype=torch.int64) for _ in range(3))
    num = kernels.add_pending(
        array(slots.contiguous()), array(gradients), _lines(squares), array(ticks.contiguous()),
        float(divisor or 0), saved_bytes, array(copies.pending), _lines(copies.squares),
        array(copies.balance), array(own), array(counted), array(index), array(found),
    )  # fmt: skip
    return Added(own[:num], counted[:num], found[:num], None if num == n else index[:num])


def settle(
    copies: CopyLines,
    slots: Int64[Tensor, " n"],
    gradients: Float32[Tensor, "n dim"],
    ticks: Int64[Tensor, " n"],
    sent: Float32[Tensor, "n dim"],
    saved_bytes: int,
    *,
    keeps_error: bool,
) -> None:
    """Clear pending updates that were pushed; their rounding errors stay pending.

    Args:
        copies: The cache.
        slots: The copies, each once.
        gradients: What was pending.
        ticks: Its ticks, which count as seen.
        sent: The gradients as they were rounded.
        saved_bytes: Bytes of a push.
        keeps_error: Whether an error makes a copy dirty.
    """
    kernels = copies.kernels(gradients, sent)
    if kernels is not None:
        kernels.settle(
            array(slots.contiguous()), array(gradients), array(ticks.contiguous()), array(sent),
            saved_bytes, keeps_error, array(copies.clocks), array(copies.ticks),
            array(copies.pending), _lines(copies.squares), array(copies.leftover),
            array(copies.balance),
        )  # fmt: skip
        return
    if copies.uses_triton(gradients, sent):
        from outsize.kernels.copies.lines_triton import settle_by_triton

        settle_by_triton(copies, slots, gradients, ticks, sent, saved_bytes, keeps_error)
        return
    held = copies.clocks.index_select(0, slots) >= 0
    copies.clocks.index_add_(0, slots, torch.where(held, ticks, 0))
    error = gradients - sent
    copies.pending.index_copy_(0, slots, error)
    if keeps_error:
        copies.leftover.index_copy_(0, slots, error.abs().amax(dim=1) > 0)
    copies.ticks.index_fill_(0, slots, 0)
    copies.balance.index_add_(0, slots, torch.full_like(slots, -saved_bytes))
    if copies.squares is not None:
        copies.squares.index_fill_(0, slots, 0.0)


def clear(copies: CopyLines, slots: Int64[Tensor, " n"]) -> None:
    """Forget copies and all that is pending for them; their rows may keep any values."""
    if copies.uses_triton():
        from outsize.kernels.copies.due_triton import clear_by_triton

        clear_by_triton(copies, slots)
        return
    copies.clocks.index_fill_(0, slots, -1)
    zeroed = (copies.ticks, copies.leftover, copies.pending, copies.checks, copies.balance)
    for tensor in zeroed if copies.squares is None else (*zeroed, copies.squares):
        tensor.index_fill_(0, slots, 0)


def refresh(
    copies: CopyLines,
    state: Mapping[str, Float32[Tensor, "slots _"]],
    slots: Int64[Tensor, " n"],
    stale: Bool[Tensor, " n"],
    sent: Float[Tensor, "k dim"],
    clocks: Int64[Tensor, " k"],
    sent_state: Mapping[str, Float32[Tensor, "k _"]],
) -> Int64[Tensor, " d"]:
    """Replace stale copies by the rows that were sent; returns the slots of dirty ones.

    Args:
        copies: The cache.
        state: Optimizer state of the copies.
        slots: A slot per row of a request.
        stale: Whether the row was sent, in the order of the request.
        sent: The rows that were sent.
        clocks: Their clocks.
        sent_state: Their state.
    """
    kernels = copies.kernels(sent, *state.values(), *sent_state.values())
    if kernels is None:
        return _refresh_by_torch(copies, state, slots, stale, sent, clocks, sent_state)
    place, flags = array(slots.contiguous()), array(stale.contiguous())
    dirty = torch.empty(n := slots.shape[0], dtype=torch.int64)
    num = kernels.refresh(
        place, flags, array(sent), array(clocks.contiguous()), array(copies.rows),
        array(copies.clocks), array(copies.ticks), array(copies.leftover), array(dirty),
    )  # fmt: skip
    if n:
        for name, lines in sent_state.items():
            kernels.copy_lines(place, flags, array(lines), array(state[name]))
    return dirty[:num]


def read(
    copies: CopyLines,
    slots: Int64[Tensor, " n"],
    stale: Bool[Tensor, " n"],
    sent: Float[Tensor, "k dim"],
    clocks: Int64[Tensor, " k"],
) -> tuple[Float[Tensor, "n dim"], Int64[Tensor, " n"]]:
    """Rows and clocks of a request: of copies, with what is pending, or else as they were sent."""
    n, dim = slots.shape[0], sent.shape[1]
    kernels = copies.kernels(sent)
    if kernels is not None:
        rows, seen = torch.empty(n, dim), torch.empty(n, dtype=torch.int64)
        kernels.read(
            array(slots.contiguous()), array(stale.contiguous()), array(sent),
            array(clocks.contiguous()), array(copies.rows), array(copies.clocks),
            array(copies.ticks), array(rows), array(seen),
        )  # fmt: skip
        return rows, seen
    own = slots.clamp_min(0)
    others = (slots < 0).nonzero().flatten()
    line = sent_line(stale)[others]
    seen = copies.clocks.index_select(0, own) + copies.ticks.index_select(0, own)
    seen.index_copy_(0, others, clocks.index_select(0, line))
    return join_lines(copies.rows, own, others, sent, line), seen


def held_clocks(copies: CopyLines, slots: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Clocks of valid copies; −1 where there is none."""
    kernels = copies.kernels()
    if kernels is not None:
        clocks = torch.empty(slots.shape[0], dtype=torch.int64)
        kernels.held_clocks(array(slots.contiguous()), array(copies.clocks), array(clocks))
        return clocks
    return torch.where(slots >= 0, copies.clocks[slots.clamp_min(0)], -1)


def count_checks(
    copies: CopyLines,
    slots: Int64[Tensor, " n"],
    was_held: Bool[Tensor, " n"],
    stale: Bool[Tensor, " n"],
    row_bytes: int,
    check_bytes: int,
    least_checks: int,
) -> Int64[Tensor, " c"]:
    """Count checks of copies with their owners; returns those that cost more than they saved.

    Args:
        copies: The cache.
        slots: A slot per row of a request.
        was_held: Whether a valid copy was checked.
        stale: Whether it was found stale.
        row_bytes: Bytes that are saved if it was not.
        check_bytes: Bytes that a check costs.
        least_checks: A copy with fewer checks is not returned; nor is a dirty one.
    """
    kernels = copies.kernels()
    if kernels is not None:
        costly = torch.empty(slots.shape[0], dtype=torch.int64)
        num = kernels.count_checks(
            array(slots.contiguous()), array(was_held.contiguous()), array(stale.contiguous()),
            row_bytes, check_bytes, least_checks, array(copies.checks), array(copies.balance),
            array(copies.ticks), array(copies.leftover), array(costly),
        )  # fmt: skip
        return costly[:num]
    slots, valid = slots[was_held], ~stale[was_held]
    copies.checks.index_add_(0, slots, torch.ones_like(slots, dtype=torch.int32))
    copies.balance.index_add_(0, slots, valid * row_bytes - check_bytes)
    checks, balance = (t.index_select(0, slots) for t in (copies.checks, copies.balance))
    costly = slots[(checks >= least_checks) & (balance < 0)]
    return costly[~is_dirty(copies, costly)]


def is_dirty(copies: CopyLines, slots: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Whether each of these copies has a pending update."""
    return (copies.ticks.index_select(0, slots) > 0) | copies.leftover.index_select(0, slots)


def sent_line(stale: Bool[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """For each row of a request that was sent, its line among those that were."""
    return stale.cumsum(0) - 1


def join_lines(
    lines: Tensor, own: Tensor, others: Tensor, sent: Tensor, line: Tensor
) -> Float[Tensor, "n width"]:
    """Lines of copies, and at the places `others` those that were sent."""
    return lines.index_select(0, own).index_copy_(0, others, sent.index_select(0, line))


def _add_by_torch(
    copies: CopyLines,
    slots: Tensor,
    gradients: Tensor,
    ticks: Tensor,
    squares: Tensor | None,
    divisor: int | None,
    saved_bytes: int,
    places: Tensor | None,
) -> Added:
    index = (slots >= 0).nonzero().flatten() if places is None else places
    has_all = places is not None and places.shape[0] == slots.shape[0]
    if copies.uses_triton(gradients, *([] if squares is None else [squares])):
        from outsize.kernels.copies.lines_triton import add_by_triton

        found = add_by_triton(copies, slots, gradients, squares, divisor, saved_bytes, index)
        if not has_all:
            slots, ticks = slots[index], ticks[index]
        return Added(slots, ticks, found, index)
    if not has_all:
        slots, ticks = slots[index], ticks[index]
        gradients = gradients.index_select(0, index)
        squares = None if squares is None else squares.index_select(0, index)
    copies.pending.index_add_(0, slots, gradients)
    copies.balance.index_add_(0, slots, torch.full_like(slots, saved_bytes))
    if squares is not None and copies.squares is not None:
        copies.squares.index_add_(0, slots, squares)
    found = copies.pending.index_select(0, slots) if divisor is None else gradients / divisor
    return Added(slots, ticks, found, index)


def _refresh_by_torch(
    copies: CopyLines,
    state: Mapping[str, Tensor],
    slots: Tensor,
    stale: Tensor,
    sent: Tensor,
    clocks: Tensor,
    sent_state: Mapping[str, Tensor],
) -> Tensor:
    refreshed = ((slots >= 0) & stale).nonzero().flatten()
    slots, line = slots[refreshed], sent_line(stale)[refreshed]
    copies.rows.index_copy_(0, slots, sent.index_select(0, line))
    copies.clocks.index_copy_(0, slots, clocks.index_select(0, line))
    for name, value in sent_state.items():
        state[name].index_copy_(0, slots, value.index_select(0, line))
    return slots[is_dirty(copies, slots)]


def _lines(tensor: Tensor | None) -> Any:
    return empty(0, 1) if tensor is None else array(tensor)
