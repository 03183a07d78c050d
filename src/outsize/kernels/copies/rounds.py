"""What a cache does in a round with other owners of its rows, by compiled passes.

The torch code that they equal, bit for bit, is that of `outsize.kernels.copies.passes` and of the
rounds of `CachedStore`. Tensors are given to these passes by their addresses, which takes a
fraction of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from outsize.kernels.arrays import addresses, array, is_plain
from outsize.kernels.compiled import compiled
from outsize.kernels.copies.due import Pending
from outsize.kernels.copies.passes import CopyLines
from outsize.kernels.copies.survey import Prices
from outsize.kernels.directory.slots import is_large

_MODULE = "copies.rounds_numba"
_MOST_TICKS = 1 << 31


class Request(NamedTuple):
    """The rows of a request, and where its reply is written.

    Attributes:
        slots: The slot of each row; negative without a copy.
        stale: Whether the row is sent.
        asked: The clock that it is asked with.
        clocks: The clocks of the reply.
        rows: The rows of the reply.
    """

    slots: Int64[Tensor, " n"]
    stale: Bool[Tensor, " n"]
    asked: Int64[Tensor, " n"]
    clocks: Int64[Tensor, " n"]
    rows: Float32[Tensor, "n dim"]


class Finished(NamedTuple):
    """What `CacheInPlace.finish_read` did.

    Attributes:
        copied: The places of rows with a copy.
        slots: Their slots.
        others: The places of the other rows.
        costly: The slots of copies whose checks cost more than they saved.
        num_hits: How many copies were valid.
    """

    copied: Int64[Tensor, " k"]
    slots: Int64[Tensor, " k"]
    others: Int64[Tensor, " m"]
    costly: Int64[Tensor, " c"]
    num_hits: int


class CacheInPlace:
    """The memory of a cache in one round; its tensors stay where they are meanwhile.

    Args:
        copies: The cache, for which there are kernels.
        state: Optimizer state of the copies.
        held: The row in each slot.
    """

    def __init__(
        self,
        copies: CopyLines,
        state: Mapping[str, Float32[Tensor, "slots _"]],
        held: Int64[Tensor, " slots"],
    ) -> None:
        self._kernels = compiled(_MODULE)
        self._copies, self._state, self._held = copies, state, held
        self._num_slots, self.dim = copies.rows.shape
        squares = copies.squares
        self._width = 0 if squares is None else squares.shape[1]
        self._lines = addresses(
            [
                copies.rows, copies.clocks, copies.ticks, copies.pending,
                copies.rows[:0] if squares is None else squares, copies.leftover, copies.checks,
                copies.balance,
            ]
        )  # fmt: skip

    def due_in_order(
        self, touched: Int64[Tensor, " t"], write_staleness: float
    ) -> Int64[Tensor, " n"] | None:
        """Slots with more than `write_staleness` ticks; `None` if their ids do not ascend.

        Args:
            touched: Slots, each once.
            write_staleness: As for `CachedStore`.
        """
        found = torch.empty_like(touched)
        num = self._kernels.due(
            self._lines, self._num_slots, array(touched), array(self._held),
            int(min(write_staleness, _MOST_TICKS)), array(found),
        )  # fmt: skip
        return None if num < 0 else found[:num]

    def take_pushed(
        self, slots: Int64[Tensor, " n"], number_bytes: int, saved_bytes: int, *, keeps_error: bool
    ) -> Pending:
        """What is pending for copies, which is cleared: `pending_at`, then `passes.settle`.

        Args:
            slots: The copies, each once.
            number_bytes: Bytes per number of the wire that rounds them.
            saved_bytes: Bytes of a push.
            keeps_error: Whether an error makes a copy dirty.
        """
        n, width = slots.shape[0], self._width
        ids, ticks = torch.empty_like(slots), torch.empty_like(slots)
        lines, squares = torch.empty(n, self.dim), torch.empty(n, width)
        self._kernels.take_pushed(
            self._lines, self._num_slots, self.dim, width, number_bytes, saved_bytes, keeps_error,
            array(slots), array(self._held), array(ids), array(ticks), lines.data_ptr(),
            squares.data_ptr(),
        )  # fmt: skip
        return Pending(slots, ids, lines, ticks, squares if width else None)

    def asked_clocks(self, slots: Int64[Tensor, " n"], read_staleness: int) -> Int64[Tensor, " n"]:
        """Clocks to ask with: rows with a greater one are sent. −1 without a valid copy."""
        asked = torch.empty_like(slots)
        self._kernels.asked_clocks(
            self._lines, self._num_slots, array(slots), read_staleness, array(asked)
        )
        return asked

    def refresh(
        self,
        request: Request,
        rank: int,
        messages: Any,
        sizes: Any,
        places: Any,
        number_bytes: int,
        own: tuple[Any, Any, Any],
    ) -> Int64[Tensor, " d"]:
        """Read messages of rows: into copies, or into the reply where there is none.

        Returns the slots of copies that were replaced and have something pending.

        Args:
            request: The request.
            rank: This rank, none of whose rows has a copy.
            messages: The address of the message from each rank.
            sizes: How many rows were asked of each.
            places: Their places in the request, rank by rank.
            number_bytes: Bytes per number on the wire.
            own: The clocks and rows of this rank, and which of them were asked for.
        """
        clocks, rows, found = own
        dirty = torch.empty_like(request.slots)
        widths = np.array([part.shape[1] for part in self._state.values()], np.int64)
        num = self._kernels.refresh_from_messages(
            rank, self._lines, self._num_slots, addresses(request), self.dim, messages, sizes,
            places, found, number_bytes, clocks, rows.ctypes.data,
            addresses(list(self._state.values())), widths, array(dirty),
        )  # fmt: skip
        return dirty[:num]

    def finish_read(self, request: Request, prices: Prices) -> Finished:
        """Read copies, as `passes.read`, and count their checks, as `passes.count_checks`."""
        lists, counts = np.empty((4, request.slots.shape[0]), np.int64), np.empty(4, np.int64)
        self._kernels.finish_read(
            self._lines, self._num_slots, addresses(request), self.dim, *prices, lists, counts
        )
        num_copied, num_others, num_costly, num_hits = counts.tolist()
        ends = (num_copied, num_copied, num_others, num_costly)
        copied, slots, others, costly = (
            torch.from_numpy(line[:end]) for line, end in zip(lists, ends, strict=True)
        )
        return Finished(copied, slots, others, costly, num_hits)


def cache_in_place(
    copies: CopyLines, state: Mapping[str, Tensor], held: Int64[Tensor, " slots"]
) -> CacheInPlace | None:
    """The memory of a cache, if there are kernels for it; otherwise `None`."""
    if copies.kernels(*state.values()) is None or compiled(_MODULE) is None:
        return None
    return CacheInPlace(copies, state, held)


def list_new(
    listed: Bool[Tensor, " slots"], slots: Int64[Tensor, " n"]
) -> Int64[Tensor, " k"] | None:
    """The slots that are not listed, which then are; `None` if no kernel can."""
    if not (is_large(listed.shape[0]) and is_plain(listed)):
        return None
    if (kernels := compiled(_MODULE)) is None or not slots.is_contiguous():
        return None
    found = torch.empty_like(slots)
    num = kernels.list_new(array(slots), array(listed), array(found))
    return found[:num].clone()  # it is kept, and is mostly short
