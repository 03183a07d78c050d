"""Rounds of a `ShardedStore` by compiled kernels: few passes, and few calls per step.

The messages have the bytes that `Packing` writes, and the replies and rows get the bits of
`ShardedStore`'s other rounds: ranks with and without compiled kernels train together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.contracts import RowCounts, RowReply, RowUpdate
from outsize.kernels.arrays import addresses, array, empty, is_plain, is_plain_float, scratch
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.copies.rounds import CacheInPlace, Request
from outsize.kernels.exchange.routes import by_owner
from outsize.kernels.rows.in_place import state_arrays
from outsize.kernels.rows.rule_numbers_numba import NO_SQUARES
from outsize.kernels.rows.updates import UpdateRule
from outsize.ranks.sections import padded
from outsize.stores.local import LocalStore
from outsize.stores.pushed_lines import PushedLines
from outsize.stores.round_format import Format, round_format
from outsize.stores.wire import Wire

_LEAST_NUMBERS = 1 << 14
_NO_CLOCKS = np.empty(0, np.int64)


class CompiledRound:
    """One round of one rank; the methods are its parts, in their order.

    Args:
        owned: The rows of this rank.
        rule: How pushes are applied.
        form: How rows travel.
        pushed: What this rank pushes.
        ids: The rows that it reads.
        clocks: The clocks that it asks with, if any.
        num_ranks: Number of ranks.

    Attributes:
        has_clocks: Whether it asks with clocks.
    """

    def __init__(
        self,
        owned: LocalStore,
        rule: UpdateRule,
        form: Format,
        pushed: PushedLines,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None,
        num_ranks: int,
    ) -> None:
        self._requests = compiled("exchange.requests_numba")
        self._replies = compiled("exchange.replies_numba")
        self._owned, self._rule, self._form = owned, rule, form
        self._pushed, self._ids, self._num_ranks = pushed, ids, num_ranks
        self.has_clocks = clocks is not None
        self._asked, self._clocks = array(ids.contiguous()), _NO_CLOCKS
        if clocks is not None:
            self._clocks = array(clocks.contiguous())
        places, self._sizes = by_owner(ids, form.num_owners, num_ranks)
        self._places = array(places)
        self._dim = owned.layout.groups[0].dim
        self._square = rule.kernel_square() or NO_SQUARES
        self._order = np.empty(len(pushed.ids), np.int64)  # places by owner and wire
        self._num_pushed = np.zeros(2 * num_ranks, np.int64)
        self._num_several = np.zeros(2 * num_ranks, np.int64)
        self._requests.route(
            pushed.ids, pushed.ticks, pushed.exact, form.num_owners, self._num_pushed,
            self._num_several, self._order,
        )  # fmt: skip

    @property
    def stale(self) -> Bool[Tensor, " n"]:
        """`RowReply.stale`, once flags were read."""
        return self._stale

    @property
    def behind(self) -> int | None:
        """`RowReply.behind`, once flags were read."""
        return self._worst

    @property
    def num_local(self) -> int:
        """How many of the rows it reads this rank owns."""
        return self._sizes[self._form.rank]

    def write_requests(self, counts: RowCounts) -> tuple[list[Tensor], list[list[int]]]:
        """The request to each rank, and the numbers that tell how to read it."""
        form, kinds, mine = self._form, counts.sent_bytes, self._pushed
        pushed, several = self._num_pushed.tolist(), self._num_several.tolist()
        width = self._square_width() if len(mine.squares) else 0
        lengths, numbers = [0] * self._num_ranks, []
        for rank, num_asked in enumerate(self._sizes):
            before = sum(kinds.values())
            if rank != form.rank:
                for part in (0, 1):
                    if num := pushed[2 * rank + part]:
                        line = form.line_bytes(self._dim, fine=part == 1)
                        kinds["ids"] += padded(form.id_bytes * num)
                        kinds["clocks"] += padded(4 * num)
                        kinds["gradients"] += padded(line * num)
                        kinds["gradients"] += padded(4 * width * several[2 * rank + part])
                kinds["ids"] += padded(form.id_bytes * num_asked)
                kinds["clocks"] += padded(4 * num_asked) if self.has_clocks else 0
            lengths[rank] = sum(kinds.values()) - before
            numbers.append([pushed[2 * rank], pushed[2 * rank + 1], num_asked, lengths[rank]])
        messages, targets = self._blank(lengths)
        self._requests.write_requests(
            targets, form.num_owners, form.id_bytes, form.coarse, form.fine, self._dim, width,
            mine.is_sum, mine.ids, mine.ticks, self._order, mine.lines, mine.squares,
            self._num_pushed, self._asked, self._places, self._clocks, np.array(self._sizes),
        )  # fmt: skip
        return messages, numbers

    def apply(self, received: Sequence[Tensor], numbers: Sequence[Sequence[int]]) -> None:
        """As the owner, apply the mean of what all ranks push."""
        form, num_ranks, dim = self._form, self._num_ranks, self._dim
        self._messages = received  # their sections are read once more
        self._numbers = np.array(numbers, np.int64)
        self._sections = np.zeros((3 * num_ranks, 4), np.int64)
        width = self._square_width() if self._square != NO_SQUARES else 0
        num_several = self._requests.read_sections(
            self._addresses(received), self._numbers, form.id_bytes, dim, width, form.coarse,
            form.fine, self._sections,
        )  # fmt: skip
        num_lists = np.count_nonzero(self._numbers[:, :2])
        own = self._numbers[form.rank]
        num_lists -= bool(own[0] and own[1])
        total = int(self._numbers[:, :2].sum())
        if not total:
            return
        mine = self._pushed
        start = int(self._num_pushed[: 2 * form.rank].sum())
        own_several = self._num_several[2 * form.rank : 2 * form.rank + 2].any()
        has_several = num_several > 0 or (own_several and len(mine.squares) > 0)
        sums = self._square != NO_SQUARES and bool(has_several)
        places, counted = (
            torch.empty(total, dtype=torch.int64),
            torch.empty(total, dtype=torch.int64),
        )
        mean = scratch("mean_gradients", total * dim).view(total, dim)
        found_squares = torch.empty(total if sums else 0, max(self._square_width(), 1))
        num = self._requests.merge_pushes(
            form.rank, form.num_owners, form.id_bytes, form.coarse, form.fine, self._numbers,
            self._sections, self._order[start:], mine.ids, mine.ticks, mine.lines, mine.squares,
            num_lists > 1 or mine.is_sum, self._square, float(num_ranks), array(places),
            array(counted), array(mean), array(found_squares),
        )  # fmt: skip
        self._owned.submit(
            RowUpdate(
                places[:num] * form.num_owners + form.rank,
                (mean[:num],),
                counted[:num],
                (found_squares[:num],) if sums else None,
            )
        )

    def write_replies(self, counts: RowCounts) -> tuple[list[Tensor], list[Tensor]]:
        """The flags and the rows for each rank; without clocks there are no flags."""
        form, me = self._form, self._form.rank
        asked = self._numbers[:, 2].tolist()
        lengths = [
            0 if rank == me or not self.has_clocks else padded(4) + padded(-(-num // 8))
            for rank, num in enumerate(asked)
        ]
        flags, targets = self._blank(lengths, zeroed=True)
        self._sent = np.empty(self._num_ranks, np.int64)
        self._behind = np.empty(self._num_ranks, np.int64)
        self._found, self._own_flags = np.empty(sum(asked), np.int64), np.empty(asked[me], bool)
        before_own = self._sizes[:me]
        self._replies.compare(
            me, form.num_owners, form.id_bytes, self._numbers, self._sections, self._asked,
            self._places[sum(before_own) :], self._clocks, self.has_clocks,
            array(self._owned.clocks), targets, self._found, self._sent, self._behind,
            self._own_flags,
        )  # fmt: skip
        state = self._owned.state(0) if self.has_clocks else {}
        widths = [part.shape[1] for part in state.values()]
        sizes = [
            0 if rank == me else self._row_bytes(num, widths)
            for rank, num in enumerate(self._sent.tolist())
        ]
        counts.sent_bytes["clocks"] += sum(lengths)
        for rank, num in enumerate(self._sent.tolist()):
            if rank != me:
                counts.sent_bytes["clocks"] += padded(4 * num)
                counts.sent_bytes["rows"] += sizes[rank] - padded(4 * num)
        rows, targets = self._blank(sizes)
        self._table = (array(self._owned.clocks), array(self._owned.rows(0)))
        self._state, self._widths = state_arrays(state), widths
        self._replies.write_rows(
            me, len(widths), self._sent, self._found, *self._table, form.coarse, *self._state,
            targets,
        )  # fmt: skip
        return flags, rows

    def num_flag_bytes(self) -> list[int]:
        """The size of the flags from each rank."""
        sizes = [padded(4) + padded(-(-num // 8)) for num in self._sizes]
        sizes[self._form.rank] = 0
        return sizes

    def read_flags(self, messages: Sequence[Tensor]) -> list[int]:
        """Read which rows each rank sends; returns the size of what it sends."""
        me, n = self._form.rank, self._ids.shape[0]
        self._stale, self._lines = torch.empty(n, dtype=torch.bool), np.empty(n, np.int64)
        sent = np.empty(self._num_ranks, np.int64)
        worst = self._replies.read_flags(
            me, self._addresses(messages), np.array(self._sizes), self._places, self._own_flags,
            array(self._stale), self._lines, sent,
        )  # fmt: skip
        least = np.iinfo(np.int64).min
        worst = max(int(worst), int(self._behind[me]))
        self._worst = None if worst == least else worst
        self._num_stale = int(sent.sum())
        return [
            0 if rank == me else self._row_bytes(num, self._widths)
            for rank, num in enumerate(sent.tolist())
        ]

    def sizes_without_flags(self) -> list[int]:
        """The size of what each rank sends if it sends all rows."""
        me = self._form.rank
        return [0 if r == me else self._row_bytes(num, []) for r, num in enumerate(self._sizes)]

    def read_rows(self, messages: Sequence[Tensor]) -> RowReply:
        """Everything that this rank asked for."""
        n = self._num_stale if self.has_clocks else self._ids.shape[0]
        rows, clocks = torch.empty(n, self._dim), torch.empty(n, dtype=torch.int64)
        state = [torch.empty(n, width) for width in self._widths]
        nothing = [empty(0, 1)] * (3 - len(state))
        own = int(self._sent[: self._form.rank].sum())
        stale, lines = (array(self._stale), self._lines) if self.has_clocks else _NONE_LEFT_OUT
        self._replies.read_rows(
            self._form.rank, len(state), self._addresses(messages), np.array(self._sizes),
            self._places, stale, lines, self._found[own:], self._form.coarse, *self._table,
            *self._state, array(clocks), array(rows), *map(array, state), *nothing,
        )  # fmt: skip
        if not self.has_clocks:
            return RowReply(torch.ones(n, dtype=torch.bool), (rows,), clocks)
        names = self._owned.state(0)
        named = dict(zip(names, state, strict=True))
        return RowReply(self._stale, (rows,), clocks, (named,), self._worst)

    def read_into_copies(
        self, messages: Sequence[Tensor], cache: CacheInPlace, request: Request
    ) -> Int64[Tensor, " d"]:
        """`read_rows` for a cache: see `CacheInPlace.refresh`.

        The request had clocks, and all rows of this rank are sent.
        """
        own = int(self._sent[: self._form.rank].sum())
        return cache.refresh(
            request, self._form.rank, self._addresses(messages), np.array(self._sizes),
            self._places, self._form.coarse, (*self._table, self._found[own:]),
        )  # fmt: skip

    def _row_bytes(self, num: int, widths: Sequence[int]) -> int:
        own = padded(4 * num) + padded(self._form.line_bytes(self._dim) * num)
        return own + sum(padded(4 * width * num) for width in widths)

    def _square_width(self) -> int:
        return {0: 1, 1: 1}.get(self._square, self._dim)

    def _blank(self, sizes: Sequence[int], *, zeroed: bool = False) -> tuple[list[Tensor], Any]:
        """Messages of these sizes, next to each other, and their addresses; 0 for this rank."""
        make = torch.zeros if zeroed else torch.empty
        messages = list(make(sum(sizes), dtype=torch.uint8).split(list(sizes)))
        return messages, self._addresses(messages)

    def _addresses(self, messages: Sequence[Tensor]) -> Any:
        found = addresses(messages)
        found[self._form.rank] = 0
        return found


_NONE_LEFT_OUT = (np.empty(0, bool), np.empty(0, np.int64))


def compiled_round(
    owned: LocalStore,
    rule: UpdateRule | None,
    wire: Wire,
    rank: int,
    num_owners: int,
    num_ranks: int,
    update: RowUpdate,
    ids: Int64[Tensor, " n"],
    clocks: Int64[Tensor, " n"] | None,
) -> CompiledRound | None:
    """A round, if kernels can do all its parts; otherwise `None`."""
    groups = owned.layout.groups
    num_numbers = (update.ids.shape[0] + ids.shape[0]) * groups[0].dim
    if len(groups) > 1 or not is_worthwhile(num_numbers, _LEAST_NUMBERS):
        return None
    integers = [update.ids, update.ticks, ids, *([] if clocks is None else [clocks])]
    if not (is_plain(*integers) and is_plain_float(*update.gradients, *(update.squares or ()))):
        return None
    form = round_format(owned, rule, wire, rank, num_owners, num_ranks)
    if form is None or rule is None:
        return None
    return CompiledRound(owned, rule, form, PushedLines.of(update), ids, clocks, num_ranks)
