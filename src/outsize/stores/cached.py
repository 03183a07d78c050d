"""Copies of rows that live elsewhere, each as stale as its bounds allow (HET, VLDB 2022).

A worker keeps copies of the rows it uses. A copy may be read while its owner is at most
`read_staleness` updates ahead of it (s_r), and a worker's own updates may wait here until more than
`write_staleness` batches have touched the row (s_w). The text has one bound s for both; but a push
of s + 1 ticks then makes every other copy invalid at once, and the read bound is hardly of use.

The protocol of a round, in an order all ranks agree on:

1. Rows with more ticks than s_w, rows that give way, and updates of rows without a copy are pushed,
   whether or not the next batch needs them.
2. Owners apply all pushes, then look at the clocks they were asked with: only rows that are more
   than s_r updates ahead travel.
3. A rank's own pushes count as seen by its copies.

With it a read misses none of its worker's own updates, at most s_r + s_w of any other worker from
earlier batches, and at most s_r + (N - 1)·s_w of all others; where no worker holds back updates of
rows it owns, as over a `ShardedStore`, at most s_r + (N - 2)·s_w, and an owner (N - 1)·s_w. With
both bounds 0 training equals that without a cache, to the last bit where nothing is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from outsize.contracts import RowCounts, RowReply, RowStore, RowUpdate, TablePart
from outsize.errors import ConfigError
from outsize.kernels.rows.updates import UpdateRule
from outsize.spec import MemoryUse
from outsize.stores.copies import NEVER_COPIED, PendingRows, RowCopies, under
from outsize.stores.eviction import EVICTION
from outsize.stores.merging import merge_updates, no_update
from outsize.stores.replies import newer_than


def require_staleness(name: str, bound: float) -> None:
    """Refuse a bound that is no number of updates."""
    if not bound >= 0 or (math.isfinite(bound) and bound != int(bound)):
        raise ConfigError(f"{name} must be a whole number >= 0 or infinity, but got {bound}")


class CachedStore(RowStore):
    """Wraps a store whose rows are far away, and keeps copies of the rows in use.

    A row that its worker owns is never copied, nor is one for which asking about its clock costs
    more bytes than copies have saved. What an optimizer submits waits with the copy; `flush`
    pushes everything and makes every copy be read anew, so that after it all ranks see all updates.
    `exchange` and `flush` are entered by all ranks together where the inner store's are.

    With a wire that rounds, what rounding leaves out of a push stays with the copy and is part of
    the next one; a copy that gives way, and a flush, push by a finer wire (for int8: 16 bits). A
    row without a copy has nowhere to keep it. Under a rule that cannot merge batches (Adam) what is
    left out is never an update of its own: a copy that gives way, and a flush, drop it where no
    gradient has come since. Nor does such a rule see two batches as one: a second `submit` before
    the next exchange, or an exchange with an update, pushes the first.

    Args:
        inner: The store to wrap.
        num_rows: Room for so many copies, shared by groups of tables in proportion to their rows.
        read_staleness: How many updates of others a copy may miss: 0, 1, … or `math.inf`, which
            never asks.
        write_staleness: How many batches of own updates may wait: 0, 1, … or `math.inf`. A rule
            that has no meaning for sums over batches (Adam) needs 0.
        eviction: A key of `EVICTION`.
    """

    def __init__(
        self,
        inner: RowStore,
        num_rows: int,
        read_staleness: float = 100,
        write_staleness: float = 10,
        eviction: str = "fading-lfu",
    ) -> None:
        super().__init__(inner.layout.specs, inner.seed)
        if num_rows < len(self.layout.groups):
            raise ConfigError(
                f"a cache needs room for at least one row of each width ({len(self.layout.groups)} "
                f"here), but got num_rows = {num_rows}"
            )
        require_staleness("read_staleness", read_staleness)
        require_staleness("write_staleness", write_staleness)
        if eviction not in EVICTION:
            raise ConfigError(
                f"eviction must be one of {', '.join(EVICTION)}, but got {eviction!r}"
            )
        self.inner = inner
        self.transport = inner.transport
        self.is_shared, self.is_asynchronous = inner.is_shared, inner.is_asynchronous
        self.read_staleness = read_staleness
        self.write_staleness = write_staleness
        self.copies = nn.ModuleList()
        for group in self.layout.groups:
            share = max(1, num_rows * group.num_rows // self.layout.num_rows)
            num_slots = min(share, group.num_rows)
            cost = self.transport.bytes_per_row(group.dim)
            policy = EVICTION[eviction](num_slots)
            self.copies.append(
                RowCopies(group, num_slots, policy, inner.num_workers, cost, self.seed)
            )
        self.copies.to(inner._device())
        self._outbox: list[RowUpdate] = []
        self._has_submitted = False
        self._counts = RowCounts()

    @property
    def num_workers(self) -> int:  # noqa: D102
        return self.inner.num_workers

    def bind(self, rule: UpdateRule) -> None:  # noqa: D102
        if self.write_staleness > 0 and not rule.merges_batches:
            raise ConfigError(
                f"{type(rule).__name__} has no meaning for a sum over batches: with this "
                f"optimizer a cache needs write_staleness = 0, but has {self.write_staleness}"
            )
        self.inner.bind(rule)
        self.rule = self.inner.rule
        for copies in self._groups():
            copies.bind(rule)

    @torch.no_grad()
    def exchange(  # noqa: D102
        self,
        update: RowUpdate | None,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None = None,
    ) -> RowReply:
        if update is not None:
            self._keep_batches_apart()
        self._accept(update)
        self._has_submitted = False
        remote = self.transport.is_remote(ids)
        runs = list(
            zip(self._groups(), self._split(ids), self._split_like(remote, ids), strict=True)
        )
        slots: list[Tensor] = []
        evicted: list[PendingRows] = []
        for copies, run, own in runs:
            found = torch.where(own, copies.find(run), NEVER_COPIED)
            places, gone, num_gone = copies.admit(run[own], found[own])
            slots.append(found.masked_scatter(own, places))
            evicted.append(gone)
            self._counts.evictions += num_gone
        pushed = [copies.take_pending(copies.due(self.write_staleness)) for copies, _, _ in runs]
        outgoing = self._outgoing(pushed, evicted, exact=False)
        self._settle(pushed)
        return self._read(outgoing, ids, slots, clocks)

    @torch.no_grad()
    def submit(self, update: RowUpdate | None) -> None:
        """Keep an update with the copies of its rows; the others travel in the next round."""
        self._keep_batches_apart()
        self._accept(update)
        self._has_submitted = True

    def any_rank(self, flag: bool) -> bool:  # noqa: D102
        return self.inner.any_rank(flag)

    def fail(self) -> None:  # noqa: D102
        self.inner.fail()

    def close(self) -> None:  # noqa: D102
        self.inner.close()

    def leave(self) -> None:  # noqa: D102
        self.inner.leave()

    @torch.no_grad()
    def flush(self) -> None:
        """Push everything, and read every row anew from now on."""
        dirty = [copies.take_pending(copies.dirty()) for copies in self._groups()]
        self.inner.submit(self._outgoing((), dirty, exact=True))
        self.inner.flush()
        self._has_submitted = False
        for copies, rows in zip(self._groups(), dirty, strict=True):
            copies.settle(rows, rows.gradients)
            copies.forget_values()

    @torch.no_grad()
    def preview(
        self, update: RowUpdate | None, ids: Int64[Tensor, " n"]
    ) -> tuple[Float[Tensor, "_ _"], ...]:
        """Rows as a flush would leave them: copies are neither read nor made, nothing is pushed.

        Owners show what their rows become with everything that waits here; where `exchange` is
        entered by all ranks together, with everything that waits on any rank.
        """
        dirty = [copies.take_pending(copies.dirty()) for copies in self._groups()]
        waiting = self._joined((), dirty, exact=True)
        if update is not None:
            waiting = merge_updates([waiting, update], self.layout, self.rule)
        return self.inner.preview(waiting, ids)

    def parts(self) -> list[TablePart]:  # noqa: D102
        return self.inner.parts()

    def saves_parts(self) -> bool:  # noqa: D102
        return self.inner.saves_parts()

    def rank_state(self) -> dict[str, Tensor]:
        """Which rows have copies, and what the policy knows; copies themselves are read anew."""
        state = {f"inner.{name}": value for name, value in self.inner.rank_state().items()}
        for index, copies in enumerate(self._groups()):
            state |= {f"copies.{index}.{n}": value for n, value in copies.directory().items()}
        return state

    def fits_rank_state(self, state: Mapping[str, Tensor]) -> bool:
        """Whether it is of caches as large as these, by the same policy, with rows from elsewhere.

        Other caches simply begin empty.
        """
        if not self.inner.fits_rank_state(under("inner.", state)):
            return False
        if {n for n in state if n.startswith("copies.")} != {
            n for n in self.rank_state() if n.startswith("copies.")
        }:
            return False
        for index, (copies, group) in enumerate(
            zip(self._groups(), self.layout.groups, strict=True)
        ):
            saved = under(f"copies.{index}.", state)
            if not copies.fits_directory(saved):
                return False
            held = saved["ids"][saved["ids"] >= 0].to(self._device()) + group.start
            if not bool(self.transport.is_remote(held).all()):
                return False
        return True

    def load_rank_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: D102
        self.inner.load_rank_state(under("inner.", state))
        for index, copies in enumerate(self._groups()):
            copies.load_directory(under(f"copies.{index}.", state))

    def memory_by_table(self) -> dict[str, MemoryUse]:
        """What the tables cost in the inner store; copies belong to no table."""
        return self.inner.memory_by_table()

    def memory_use(self) -> MemoryUse:
        """What the inner store and the copies cost."""
        return self.inner.memory_use() + MemoryUse.of({"cache": list(self.copies.buffers())})

    def take_counts(self) -> RowCounts:  # noqa: D102
        counts = _with_inner(self.inner.take_counts(), self._counts)
        self._counts = RowCounts()
        return counts

    def _groups(self) -> list[RowCopies]:
        return [copies for copies in self.copies if isinstance(copies, RowCopies)]

    def _accept(self, update: RowUpdate | None) -> None:
        """Add an update to the copies there are; put the rest into the outbox."""
        if update is None or not update.ids.numel():
            return
        if self.rule is None:
            raise ConfigError(
                "this store has no optimizer yet: make one first, such as outsize.RowSGD(store)"
            )
        missing: list[Tensor] = []
        squares = update.squares or (None,) * len(update.gradients)
        runs = self._split(update.ids)
        ticks = self._split_like(update.ticks, update.ids)
        lines = zip(self._groups(), runs, update.gradients, ticks, squares, strict=True)
        for copies, run, gradients, counted, square in lines:
            slots = copies.find(run)
            here = (slots >= 0).nonzero().flatten()
            own = None if square is None else square.index_select(0, here)
            added = gradients.index_select(0, here).float()
            copies.add(slots[here], added, counted[here], own, self.transport.as_sent)
            missing.append(slots < 0)
        rest = torch.cat(missing).nonzero().flatten()
        if rest.numel():
            self._outbox.append(update.take(rest))

    def _keep_batches_apart(self) -> None:
        """Push what was submitted before, where the rule cannot merge it with what comes now."""
        if not self._has_submitted or self.rule is None or self.rule.merges_batches:
            return
        pushed = [copies.take_pending(copies.dirty()) for copies in self._groups()]
        self.inner.exchange(self._outgoing(pushed, (), exact=False), self._no_ids())
        self._settle(pushed)

    def _settle(self, pushed: Sequence[PendingRows]) -> None:
        for copies, rows in zip(self._groups(), pushed, strict=True):
            copies.settle(rows, self.transport.as_sent(rows.gradients))

    def _outgoing(
        self, pushed: Sequence[PendingRows], leaving: Sequence[PendingRows], *, exact: bool
    ) -> RowUpdate:
        """All that goes to the owners now (see `_joined`), and an empty outbox."""
        outgoing = self._joined(pushed, leaving, exact=exact)
        self._outbox.clear()
        return outgoing

    def _joined(
        self, pushed: Sequence[PendingRows], leaving: Sequence[PendingRows], *, exact: bool
    ) -> RowUpdate:
        """Updates of copies and the outbox as one.

        Args:
            pushed: Updates of copies that stay, one for each group; or none at all.
            leaving: Updates of copies that do not: they travel by the finer wire.
            exact: Send the outbox by it, too.
        """
        updates = [self._as_update(pushed, exact=False)] if pushed else []
        updates += [self._as_update(leaving, exact=True)] if leaving else []
        updates += [
            replace(update, exact=torch.full_like(update.ids, exact, dtype=torch.bool))
            for update in self._outbox
        ]
        updates = updates or [no_update(self.layout, self._device())]
        return merge_updates(updates, self.layout, self.rule)

    def _as_update(self, groups: Sequence[PendingRows], *, exact: bool) -> RowUpdate:
        starts = [group.start for group in self.layout.groups]
        ids = torch.cat([rows.ids + start for rows, start in zip(groups, starts, strict=True)])
        squares = tuple(rows.squares for rows in groups if rows.squares is not None)
        return RowUpdate(
            ids,
            tuple(rows.gradients for rows in groups),
            torch.cat([rows.ticks for rows in groups]),
            squares if len(squares) == len(groups) else None,
            torch.full_like(ids, exact, dtype=torch.bool),
        )

    def _read(
        self,
        outgoing: RowUpdate,
        ids: Int64[Tensor, " n"],
        slots: list[Tensor],
        clocks: Int64[Tensor, " n"] | None,
    ) -> RowReply:
        """Push, ask after what may be stale, and put together what the asker gets."""
        held = torch.cat(
            [c.held_clocks(places) for c, places in zip(self._groups(), slots, strict=True)]
        )
        is_held = held >= 0
        if math.isfinite(self.read_staleness):
            asked = torch.arange(ids.shape[0], device=ids.device)
            content = torch.where(is_held, held + int(self.read_staleness), -1)
        else:
            asked = (~is_held).nonzero().flatten()
            content = torch.full_like(asked, -1)
        reply = self.inner.exchange(outgoing, ids[asked], content)
        if reply.behind is not None and math.isfinite(self.read_staleness):
            self._counts.see_lag(reply.behind + int(self.read_staleness))
        is_stale = torch.zeros_like(is_held).index_fill(0, asked[reply.stale], True)
        self._counts.reads += ids.shape[0]
        self._counts.local += ids.shape[0] - int(self.transport.is_remote(ids).sum())
        self._counts.hits += int((is_held & ~is_stale).sum())
        newest = torch.zeros_like(ids).index_copy(0, asked[reply.stale], reply.clocks)
        found: list[tuple[Tensor, dict[str, Tensor], Tensor]] = []
        lines = zip(
            self._groups(), slots, self._split_like(is_stale, ids), self._split_like(newest, ids),
            self._split_like(is_held, ids), reply.rows, reply.state, strict=True,
        )  # fmt: skip
        for copies, places, stale, at, was_held, rows, state in lines:
            found.append(copies.answer(places, stale, rows, at, state))
            if math.isfinite(self.read_staleness):
                copies.judge(places[was_held], ~stale[was_held])
        rows, state, current = zip(*found, strict=True)
        return newer_than(clocks, rows, state, torch.cat(current))

    def _split(self, ids: Int64[Tensor, " n"]) -> list[Int64[Tensor, " _"]]:
        """Ascending store ids as row numbers within each group."""
        groups = self.layout.groups
        return [
            run - group.start for run, group in zip(self.layout.split(ids), groups, strict=True)
        ]

    def _split_like(self, values: Tensor, ids: Int64[Tensor, " n"]) -> list[Tensor]:
        return list(values.split(self.layout.group_sizes(ids)))

    def _no_ids(self) -> Int64[Tensor, " 0"]:
        return torch.empty(0, dtype=torch.int64, device=self._device())


def _with_inner(inner: RowCounts | None, own: RowCounts) -> RowCounts:
    """What the inner store sent, and what was read here."""
    if inner is None:
        return own
    sent = {kind: size + own.sent_bytes[kind] for kind, size in inner.sent_bytes.items()}
    return replace(
        own,
        sent_bytes=sent,
        pushes=inner.pushes + own.pushes,
        evictions=inner.evictions + own.evictions,
        exchange_s=inner.exchange_s + own.exchange_s,
    )
