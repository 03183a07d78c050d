"""A cache of remote rows with bounded staleness (HET, VLDB 2022).

A worker keeps copies of the rows it uses. A copy may be read while its owner is at most
`read_staleness` updates ahead of it (s_r). A worker's own updates stay pending in the cache until
more than `write_staleness` batches have touched the row (s_w). The paper has one bound s for both.
But then a single push of s + 1 ticks invalidates every other copy, so the read bound hardly helps.

The protocol of a round, in the same order on all ranks:

1. The worker pushes pending updates: of copies with more than s_w ticks, of evicted copies, and of
   rows without a copy, whether or not the next batch needs the row.
2. Owners apply all pushes, then compare the clocks in the requests with those of their rows. They
   send only rows that are more than s_r updates ahead.
3. A rank's own pushes count as seen by its copies.

Hence a read misses none of its worker's own updates, at most s_r + s_w updates of any other worker
from earlier batches, and at most s_r + (N - 1)·s_w of all others. If no worker delays updates of
rows it owns, as over a `ShardedStore`, the last bound is s_r + (N - 2)·s_w, and (N - 1)·s_w for the
owner. With both bounds 0, training equals training without a cache: bit for bit if nothing is
rounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from outsize.bounds import require_staleness
from outsize.contracts import RowCounts, RowReply, RowStore, RowUpdate
from outsize.errors import ConfigError
from outsize.kernels.rows.updates import UpdateRule
from outsize.registries import require_known
from outsize.spec import MemoryUse
from outsize.stores.cached_rounds import sharded_rounds
from outsize.stores.copies import RowCopies
from outsize.stores.copy_directory import NEVER_COPIED, with_prefix
from outsize.stores.eviction import EVICTION
from outsize.stores.local_rounds import LastRead, last_read, local_rounds
from outsize.stores.merging import merge_updates
from outsize.stores.pending_rows import Outbox, PendingRows
from outsize.stores.replies import reply_if_newer
from outsize.stores.wrapper import StoreWrapper


class CachedStore(StoreWrapper):
    """Wraps a store with remote rows and keeps copies of the rows in use.

    Rows that the worker owns are never copied. Nor are rows whose clock checks cost more bytes than
    their copies have saved. Updates that an optimizer submits stay pending with the copy. `flush`
    pushes all of them and invalidates every copy, so that afterwards all ranks see all updates.
    `exchange` and `flush` are collective if they are in the inner store: all ranks call them.

    A wire that rounds uses error feedback: the rounding error of a push stays with the copy and is
    added to the next push. The last push of a copy, when it is evicted or flushed, travels by a
    finer wire (for int8: 16 bits). Rows without a copy have no error feedback. A rule that cannot
    merge batches (Adam) never applies a rounding error as an update of its own: eviction and flush
    drop it if no gradient has arrived since. Such a rule never sees two batches as one either: a
    second `submit` before the next exchange, or an exchange with an update, pushes the first.

    Args:
        inner: The store to wrap.
        num_rows: Maximum number of copies, split over groups in proportion to their rows.
        read_staleness: Bound on the lag of a copy, in updates of other ranks: 0, 1, … or
            `math.inf`, which never checks a copy.
        write_staleness: Number of own batches whose updates may stay pending per row: 0, 1, … or
            `math.inf`. A rule that cannot merge batches (Adam) needs 0.
        eviction: A key of `EVICTION`.
    """

    def __init__(
        self,
        inner: RowStore,
        num_rows: int,
        read_staleness: float = 10,
        write_staleness: float = 10,
        eviction: str = "fading-lfu",
    ) -> None:
        super().__init__(inner)
        if num_rows < len(self.layout.groups):
            raise ConfigError(
                f"a cache needs room for at least one row of each width ({len(self.layout.groups)} "
                f"here), but got num_rows = {num_rows}"
            )
        require_known("eviction", eviction, EVICTION)
        self.read_staleness = read_staleness
        self.write_staleness = write_staleness
        require_staleness(self, "read_staleness", "write_staleness")
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
        self._outbox = Outbox(self.layout)
        self._has_submitted = False
        self._counts = RowCounts()
        self._last_read: LastRead | None = None

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
            self._push_if_unmergeable()
        self._accept(update)
        self._has_submitted, self._last_read = False, None
        if self.num_workers == 1 and not self.transport.has_remote_rows:  # so there are no copies
            self._counts.reads += ids.shape[0]
            self._counts.local += ids.shape[0]
            update = None
            if len(self._outbox):
                update = self._outbox.take((), (), self.rule, exact=False)
            return self.inner.exchange(update, ids, clocks)
        if clocks is None and (reply := self._read_at_hand(ids)) is not None:
            return reply
        remote = self.transport.is_remote(ids)
        slots: list[Tensor] = []
        evicted: list[PendingRows] = []
        num_remote = 0
        lines = zip(self._groups(), self._split(ids), self._split_like(remote, ids), strict=True)
        for copies, run, is_remote in lines:
            own = is_remote.nonzero().flatten()
            rows = run.index_select(0, own)
            places, pending, num_evicted = copies.admit(rows, copies.find(rows))
            slots.append(torch.full_like(run, NEVER_COPIED).index_copy_(0, own, places))
            evicted.append(pending)
            num_remote += own.shape[0]
            self._counts.evictions += num_evicted
        self._counts.reads += ids.shape[0]
        self._counts.local += ids.shape[0] - num_remote
        groups = self._groups()
        pushed = [copies.pending_updates(copies.due(self.write_staleness)) for copies in groups]
        outgoing = self._outbox.take(pushed, evicted, self.rule, exact=False)
        self._mark_pushed(pushed)
        return self._read(outgoing, ids, slots, clocks)

    @torch.no_grad()
    def submit(self, update: RowUpdate | None) -> None:
        """Add an update to the copies of its rows; the other rows are pushed in the next round."""
        self._push_if_unmergeable()
        self._accept(update)
        self._has_submitted = True

    @torch.no_grad()
    def flush(self) -> None:
        """Push all pending updates and invalidate every copy."""
        dirty = [copies.pending_updates(copies.dirty()) for copies in self._groups()]
        self.inner.submit(self._outbox.take((), dirty, self.rule, exact=True))
        self.inner.flush()
        self._has_submitted, self._last_read = False, None
        for copies, rows in zip(self._groups(), dirty, strict=True):
            copies.mark_pushed(rows, rows.gradients)
            copies.invalidate()

    @torch.no_grad()
    def preview(
        self, update: RowUpdate | None, ids: Int64[Tensor, " n"]
    ) -> tuple[Float[Tensor, "_ _"], ...]:
        """Rows as a flush would leave them. No copy is read or made, and nothing is pushed.

        Owners compute the rows with every update that is pending here; if `exchange` is collective,
        with every update that is pending on any rank.
        """
        dirty = [copies.pending_updates(copies.dirty()) for copies in self._groups()]
        pending = self._outbox.merged((), dirty, self.rule, exact=True)
        if update is not None:
            pending = merge_updates([pending, update], self.layout, self.rule)
        return self.inner.preview(pending, ids)

    def rank_state(self) -> dict[str, Tensor]:
        """Which rows have copies, and the state of the policy; values are read again."""
        state = {f"inner.{name}": value for name, value in self.inner.rank_state().items()}
        for index, copies in enumerate(self._groups()):
            state |= {f"copies.{index}.{n}": value for n, value in copies.directory().items()}
        return state

    def fits_rank_state(self, state: Mapping[str, Tensor]) -> bool:
        """Whether a saved state fits: same sizes, same policy, and remote rows only.

        If it does not fit, the cache starts empty.
        """
        if not self.inner.fits_rank_state(with_prefix("inner.", state)):
            return False
        if {n for n in state if n.startswith("copies.")} != {
            n for n in self.rank_state() if n.startswith("copies.")
        }:
            return False
        for index, (copies, group) in enumerate(
            zip(self._groups(), self.layout.groups, strict=True)
        ):
            saved = with_prefix(f"copies.{index}.", state)
            if not copies.fits_directory(saved):
                return False
            held = saved["ids"][saved["ids"] >= 0].to(self._device()) + group.start
            if not bool(self.transport.is_remote(held).all()):
                return False
        return True

    def load_rank_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: D102
        self._last_read = None
        self.inner.load_rank_state(with_prefix("inner.", state))
        for index, copies in enumerate(self._groups()):
            copies.load_directory(with_prefix(f"copies.{index}.", state))

    def memory_use(self) -> MemoryUse:
        """Memory of the inner store and of the copies, which belong to no table."""
        derived = [tensor for copies in self._groups() for tensor in copies.index_memory()]
        return self.inner.memory_use() + MemoryUse.of({"cache": [*self.copies.buffers(), *derived]})

    def take_counts(self) -> RowCounts:
        """Counts of the inner store's messages and of this cache's reads, as one."""
        inner, own = self.inner.take_counts(), self._counts
        self._counts = RowCounts()
        if inner is None:
            return own
        return replace(
            own,
            sent_bytes=inner.sent_bytes,
            pushes=inner.pushes,
            evictions=inner.evictions + own.evictions,
            exchange_s=inner.exchange_s,
        )

    def _groups(self) -> list[RowCopies]:
        return [copies for copies in self.copies if isinstance(copies, RowCopies)]

    def _accept(self, update: RowUpdate | None) -> None:
        """Add an update to the copies of its rows; put rows without a copy into the outbox."""
        if update is None or not update.ids.numel():
            return
        self._require_rule()
        missing: list[Tensor] = []
        last = self._last_read
        if last is not None and update.ids is last.ids and last.is_valid(self._groups()[0].ids):
            self._accept_last_read(update, last)
            return
        if not any(copies.num_copies for copies in self._groups()):
            self._outbox.put(update)
            return
        squares = update.squares or (None,) * len(update.gradients)
        runs = self._split(update.ids)
        ticks = self._split_like(update.ticks, update.ids)
        lines = zip(self._groups(), runs, update.gradients, ticks, squares, strict=True)
        for copies, run, gradients, counted, square in lines:
            if not copies.num_copies:
                missing.append(torch.ones_like(run, dtype=torch.bool))
                continue
            slots = copies.find(run)
            copies.add(slots, gradients.float(), counted, square, self.transport.as_sent)
            missing.append(slots < 0)
        rest = (torch.cat(missing) if len(missing) > 1 else missing[0]).nonzero().flatten()
        if rest.numel():
            self._outbox.put(update.take(rest))

    def _accept_last_read(self, update: RowUpdate, last: LastRead) -> None:
        """`_accept`, for the rows of the last read, whose slots are known."""
        copies = self._groups()[0]
        if copies.num_copies:
            squares = None if update.squares is None else update.squares[0]
            copies.add(
                last.slots, update.gradients[0].float(), update.ticks, squares,
                self.transport.as_sent, last.copied, last.own,
            )  # fmt: skip
        if last.others.shape[0]:
            if last.own is None:
                self._outbox.put(update.take(last.others))
            else:
                self._outbox.put(update, last.others)

    def _read_at_hand(self, ids: Int64[Tensor, " n"]) -> RowReply | None:
        """Push and read by `LocalRounds` or `ShardedRounds`; `None`, unchanged, if they cannot."""
        if not ids.shape[0]:
            return None
        copies = self._groups()
        rounds = local_rounds(self.inner, copies) or sharded_rounds(self.inner, copies)
        if rounds is None:
            return None
        found = rounds.read(ids, self._outbox, self.read_staleness, self.write_staleness)
        if found is None:
            return None
        self._last_read = found.last
        self._counts.reads += ids.shape[0]
        self._counts.local += found.local
        self._counts.hits += found.hits
        self._counts.evictions += found.evictions
        if found.largest_lag is not None and math.isfinite(self.read_staleness):
            self._counts.see_lag(found.largest_lag)
        return found.reply

    def _push_if_unmergeable(self) -> None:
        """Push the submitted update before the next one if the rule cannot merge batches."""
        if not self._has_submitted or self.rule is None or self.rule.merges_batches:
            return
        pushed = [copies.pending_updates(copies.dirty()) for copies in self._groups()]
        self.inner.exchange(self._outbox.take(pushed, (), self.rule, exact=False), self._no_ids())
        self._mark_pushed(pushed)

    def _mark_pushed(self, pushed: Sequence[PendingRows]) -> None:
        for copies, rows in zip(self._groups(), pushed, strict=True):
            copies.mark_pushed(rows, self.transport.as_sent(rows.gradients))

    def _read(
        self,
        outgoing: RowUpdate,
        ids: Int64[Tensor, " n"],
        slots: list[Tensor],
        clocks: Int64[Tensor, " n"] | None,
    ) -> RowReply:
        """Push, request rows that may be stale, and assemble the reply."""
        held = [c.held_clocks(places) for c, places in zip(self._groups(), slots, strict=True)]
        start = held[0] if len(held) == 1 else torch.cat(held)
        is_held = start >= 0
        checks = math.isfinite(self.read_staleness)
        if checks:
            asked = torch.where(is_held, start + int(self.read_staleness), -1)
            reply = self.inner.exchange(outgoing, ids, asked)
            stale = reply.stale
        else:
            requested = (~is_held).nonzero().flatten()
            reply = self.inner.exchange(outgoing, ids[requested], torch.full_like(requested, -1))
            stale = torch.zeros_like(is_held).index_fill_(0, requested[reply.stale], True)
        if reply.behind is not None and checks:
            self._counts.see_lag(reply.behind + int(self.read_staleness))
        self._counts.hits += int((is_held > stale).count_nonzero())
        found: list[tuple[Tensor, dict[str, Tensor], Tensor]] = []
        lines = zip(
            self._groups(), slots, self._split_like(stale, ids), self._split_like(is_held, ids),
            reply.rows, reply.clocks.split([part.shape[0] for part in reply.rows]), reply.state,
            strict=True,
        )  # fmt: skip
        with_state, num_dropped = clocks is not None, 0
        for copies, places, sent, was_held, rows, newest, state in lines:
            found.append(
                copies.refresh_and_read(places, sent, rows, newest, state, with_state=with_state)
            )
            if checks:
                num_dropped += copies.drop_unprofitable(places, was_held, sent)
        if len(slots) == 1 and not num_dropped:
            self._last_read = last_read(ids, slots[0], self._groups()[0].ids)
        rows, state, current = zip(*found, strict=True)
        return reply_if_newer(clocks, rows, state, torch.cat(current))

    def _split(self, ids: Int64[Tensor, " n"]) -> list[Int64[Tensor, " _"]]:
        """Split ascending store ids by group, as row numbers within the group."""
        groups = self.layout.groups
        if len(groups) == 1:
            return [ids]
        return [
            run - group.start for run, group in zip(self.layout.split(ids), groups, strict=True)
        ]

    def _split_like(self, values: Tensor, ids: Int64[Tensor, " n"]) -> list[Tensor]:
        if len(self.layout.groups) == 1:
            return [values]
        return list(values.split(self.layout.group_sizes(ids)))
