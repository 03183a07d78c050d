"""Rounds of a cache over a `ShardedStore` by compiled kernels: few passes, and few calls per step.

They do what the rounds of `CachedStore` do, in the same order, with the same bits and messages.
Lines are read where they are: what a rank pushes is neither gathered nor merged into one tensor,
and rows that arrive are decoded into the copies, or into the reply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.contracts import RowReply, RowStore, RowUpdate
from outsize.kernels.arrays import array, is_plain, is_plain_float
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.copies.rounds import CacheInPlace, Request
from outsize.stores.copies import RowCopies
from outsize.stores.local_rounds import LastRead, RoundResult
from outsize.stores.pending_rows import HeldUpdate, Outbox, PendingRows
from outsize.stores.pushed_lines import PushedLines
from outsize.stores.round_format import Format
from outsize.stores.sharded import ShardedStore

_LEAST_NUMBERS = 1 << 14
_NONE = np.empty(0, np.int64)
_Lines = tuple[Any, Any, int, int]
_NO_LINES: _Lines = (_NONE, _NONE, 0, 0)


class ShardedRounds:
    """The rounds of one cache over one store.

    Args:
        owner: The store, with all rows in one group.
        copies: The copies of its rows.
        cache: Their memory.
        form: How rows travel.
    """

    def __init__(
        self, owner: ShardedStore, copies: RowCopies, cache: CacheInPlace, form: Format
    ) -> None:
        self._owner, self._copies = owner, copies
        self._cache, self._form = cache, form

    def read(
        self,
        ids: Int64[Tensor, " n"],
        outbox: Outbox,
        read_staleness: float,
        write_staleness: float,
    ) -> RoundResult | None:
        """Push what is due, and read rows; `None`, without a change, if this cannot do it.

        Arguments as for `LocalRounds.read`.
        """
        copies, cache, form, bound = self._copies, self._cache, self._form, read_staleness
        if not math.isfinite(bound) or not _can_push(outbox.held()) or not is_plain(ids):
            return None
        if not is_worthwhile(ids.shape[0] * cache.dim, _LEAST_NUMBERS):
            return None
        found = copies.find_others(ids.contiguous(), form.rank, form.num_owners)
        if found is None:
            return None
        slots, evicted, num_evicted = copies.admit_others(found)
        due = copies.take_due(cache, write_staleness, form.coarse)
        pushed = self._pushed(due, evicted, outbox)
        asked = cache.asked_clocks(slots, int(bound))
        exchanged, messages = self._owner.exchange_lines(form, pushed, ids, asked)
        rows, clocks = torch.empty(ids.shape[0], cache.dim), torch.empty_like(ids)
        request = Request(slots, exchanged.stale, asked, clocks, rows)
        dirty = exchanged.read_into_copies(messages, cache, request)
        if dirty.shape[0]:
            copies.apply_pending(dirty)
        done = cache.finish_read(request, copies.prices())
        last = None
        if done.costly.shape[0]:
            copies.drop(done.costly)
        else:
            version = copies.ids._version
            last = LastRead(ids, slots, done.copied, done.others, version, done.slots)
        reply = RowReply(torch.ones_like(exchanged.stale), (rows,), clocks)
        lag = None if exchanged.behind is None else exchanged.behind + int(bound)
        num_local = ids.shape[0] - found.ids.shape[0]
        return RoundResult(reply, last, done.num_hits, num_evicted, lag, num_local)

    def _pushed(self, due: PendingRows, evicted: PendingRows | None, outbox: Outbox) -> PushedLines:
        """Everything that is pushed in this round; empties the outbox."""
        held = outbox.held()
        found = joined(due, evicted, held[0] if held else None)
        if found is not None:
            outbox.take_held()
            return found
        final = () if evicted is None else (evicted,)
        return PushedLines.of(outbox.take((due,), final, self._owner.rule, exact=False))


def joined(
    due: PendingRows, evicted: PendingRows | None, held: HeldUpdate | None
) -> PushedLines | None:
    """Several updates as one, where their lines are; `None` if a row is in more than one.

    Args:
        due: Updates of copies that stay.
        evicted: Updates of copies that were evicted, which travel by the finer wire.
        held: An update of other rows.
    """
    dim = due.gradients.shape[1]
    tensors: list[Tensor] = []
    width = 0 if due.squares is None else due.squares.shape[1]
    first, final = _lines_of(due, tensors), _lines_of(evicted, tensors)
    others = _NO_LINES if held is None else _lines_of_update(held.update, tensors)
    places = _NONE
    if held is not None:
        places = np.arange(len(others[0])) if held.places is None else array(held.places)
    sizes = (len(first[0]), len(final[0]), len(places))
    ids, ticks, lines, squares = np.empty((4, sum(sizes)), np.int64)
    exact = np.empty(len(ids), bool)
    num = compiled("copies.rounds_numba").join_pushes(
        *first, width, *final, dim, *others[:2], places, *others[2:], ids, ticks, exact, lines,
        squares,
    )  # fmt: skip
    if num < 0:
        return None
    return PushedLines(
        ids, ticks, exact, lines, squares if width else _NONE, sum(map(bool, sizes)) > 1, tensors
    )


def _lines_of(rows: PendingRows | None, tensors: list[Tensor]) -> _Lines:
    """Ids, ticks and the addresses of gradients and squares; lists the tensors they are in."""
    if rows is None:
        return _NO_LINES
    squares = None if rows.squares is None else (rows.squares,)
    return _lines_of_update(RowUpdate(rows.ids, (rows.gradients,), rows.ticks, squares), tensors)


def _lines_of_update(update: RowUpdate, tensors: list[Tensor]) -> _Lines:
    gradients, squares = update.gradients[0], 0
    tensors += [update.ids, update.ticks, gradients]
    if update.squares is not None:
        tensors.append(update.squares[0])
        squares = update.squares[0].data_ptr()
    return array(update.ids), array(update.ticks), gradients.data_ptr(), squares


def _can_push(held: Sequence[HeldUpdate]) -> bool:
    """Whether lines of what is held can be read where they are."""
    if len(held) > 1:
        return False
    return all(
        is_plain_float(*each.update.gradients, *(each.update.squares or ()))
        and is_plain(each.update.ids, each.update.ticks)
        and each.update.ids.is_contiguous()
        and each.update.ticks.is_contiguous()
        for each in held
    )


def sharded_rounds(inner: RowStore, copies: list[RowCopies]) -> ShardedRounds | None:
    """The rounds of a cache over a `ShardedStore` that kernels can do; otherwise `None`."""
    if type(inner) is not ShardedStore or len(copies) > 1:
        return None
    if (form := inner.lines_format()) is None or (cache := copies[0].in_place()) is None:
        return None
    return ShardedRounds(inner, copies[0], cache, form)
