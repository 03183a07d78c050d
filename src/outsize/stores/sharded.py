"""Rows sharded over ranks: in each step, all ranks push and read in one collective round."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from outsize.contracts import RowCounts, RowReply, RowStore, RowUpdate, Shard, TablePart
from outsize.errors import ConfigError
from outsize.kernels.rows.updates import UpdateRule
from outsize.ranks.agreement import swap_headers
from outsize.ranks.collectives import ProcessRanks, RankGroup
from outsize.ranks.failures import announce_failure
from outsize.ranks.owners import places_by_owner
from outsize.ranks.sections import Message, MessageReader, MessageWriter
from outsize.spec import MemoryUse, TableSpec
from outsize.stores.local import LocalStore
from outsize.stores.merging import average_over_workers, empty_update, merge_updates
from outsize.stores.packing import Packing, RowRequest
from outsize.stores.replies import join_replies, preview_reply, refuse_state_dict
from outsize.stores.shard_transport import ShardTransport
from outsize.stores.wire import WIRES, Wire, wire_named


class ShardedStore(RowStore):
    """Every rank owns a shard of the rows and reads the others from their owners.

    A round has three parts: counts; one message from each rank to each other, with the update it
    pushes and the rows it requests; the replies. Owners merge the pushes of all ranks in the order
    of ranks, average them and apply the rule once. Then they reply. So N ranks with a batch of B
    train as one process with a batch of N·B. `submit` sends nothing: the update is held for the
    next round, or for `flush`. Rows that a rank owns itself are not rounded.

    `exchange` is collective, and with it `read`, `add`, `flush` and any forward pass: all ranks
    call it, even with nothing to push or read. Either all ranks pass an update (which may be empty)
    or none does; the same holds for clocks. If any rank is in another operation, or was built with
    other tables, another wire or another kind of optimizer, all raise a `RanksError`.

    Args:
        specs: The tables; the same on all ranks.
        seed: As for `LocalStore`; the same on all ranks.
        device: Where this rank keeps its rows.
        group: The ranks that share the rows; by default all.
        num_owners: Number of ranks that own rows, from rank 0 on; by default all.
        wire: Wire format of rows and gradients: "float32", "bfloat16" or "int8".
    """

    is_shared = True

    def __init__(
        self,
        specs: Sequence[TableSpec],
        seed: int = 0,
        device: torch.device | str = "cpu",
        group: dist.ProcessGroup | RankGroup | None = None,
        num_owners: int | None = None,
        wire: str = "float32",
    ) -> None:
        super().__init__(specs, seed)
        self.ranks = group if isinstance(group, RankGroup) else ProcessRanks(group)
        self.num_owners = self.ranks.size if num_owners is None else num_owners
        if not 1 <= self.num_owners <= self.ranks.size:
            raise ConfigError(
                f"num_owners must be between 1 and the {self.ranks.size} ranks there are, "
                f"but got {num_owners}"
            )
        self.wire = wire_named(wire)
        self.transport = ShardTransport(self.ranks.rank, self.num_owners, self.wire)
        self._facts = f"{self.layout.facts()}; {self.num_owners} owners; wire {wire}"
        self.owned = LocalStore(specs, seed, device, Shard(self.ranks.rank, self.num_owners))
        self._packing = Packing(self.layout, self.num_owners)
        self.register_load_state_dict_pre_hook(refuse_state_dict)
        self._held: RowUpdate | None = None
        self._counts = RowCounts()

    @property
    def num_workers(self) -> int:
        """All ranks of the group train."""
        return self.ranks.size

    def bind(self, rule: UpdateRule) -> None:  # noqa: D102
        self.owned.bind(rule)
        self.rule = self.owned.rule

    def submit(self, update: RowUpdate | None) -> None:
        """Hold an update for the next round. A second update flushes the one that is held."""
        if self._held is not None:
            self.flush()
        self._held = update or empty_update(self.layout, self._device())

    def flush(self) -> None:
        """Push the held update to its owners; all ranks call it."""
        self._push_held("a flush")

    def _push_held(self, operation: str) -> None:
        """Push the held update, if any, as part of an operation."""
        if self._held is not None:
            no_ids = torch.empty(0, dtype=torch.int64, device=self._device())
            self._push_and_read(None, no_ids, None, operation)

    def any_rank(self, flag: bool) -> bool:  # noqa: D102
        lines = [[int(flag)]] * self.ranks.size
        flags = swap_headers(
            self.ranks, "a check for infinities", self._facts, lines, self._device()
        )
        return any(number for (number,) in flags)

    def fail(self) -> None:  # noqa: D102
        announce_failure(self.ranks, self._device())

    @torch.no_grad()
    def exchange(  # noqa: D102
        self,
        update: RowUpdate | None,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None = None,
    ) -> RowReply:
        return self._push_and_read(
            update,
            ids,
            clocks,
            "a read for training" if clocks is None else "a read for training by a cache",
        )

    def _push_and_read(
        self,
        update: RowUpdate | None,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None,
        operation: str,
    ) -> RowReply:
        if update is not None:
            self._push_held(operation)
        started = time.perf_counter()
        pushed = update or self._held or empty_update(self.layout, ids.device)
        self._held = None
        reply = self._round(pushed, ids, clocks, self.wire, operation)
        self._counts.reads += ids.shape[0]
        self._counts.local += ids.shape[0] - int(self.transport.is_remote(ids).sum())
        self._counts.exchange_s += time.perf_counter() - started
        return reply

    @torch.no_grad()
    def preview(
        self, update: RowUpdate | None, ids: Int64[Tensor, " n"]
    ) -> tuple[Float[Tensor, "_ _"], ...]:
        """Rows as a flush of all ranks would leave them, never rounded.

        Owners apply nothing, and nothing is counted.
        """
        counts, self._counts = self._counts, RowCounts()
        updates = [u for u in (self._held, update) if u is not None]
        pushed = merge_updates(
            updates or [empty_update(self.layout, ids.device)], self.layout, self.rule
        )
        rows = self._round(
            pushed, ids, None, WIRES["float32"], "a read for evaluation", applies=False
        ).rows
        self._counts = counts
        return rows

    def parts(self) -> list[TablePart]:  # noqa: D102
        return self.owned.parts()

    def saves_parts(self) -> bool:
        """Whether this rank owns rows."""
        return self.ranks.rank < self.num_owners

    def memory_by_table(self) -> dict[str, MemoryUse]:
        """Memory of this rank's shard of each table."""
        return self.owned.memory_by_table()

    def take_counts(self) -> RowCounts:  # noqa: D102
        counts, self._counts = self._counts, RowCounts()
        return counts

    def _round(
        self,
        update: RowUpdate,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None,
        wire: Wire,
        operation: str,
        *,
        applies: bool = True,
    ) -> RowReply:
        """Swap requests, apply updates, swap replies; in the same order on all ranks."""
        places = places_by_owner(ids % self.num_owners, self.ranks.size)
        requests = self._requests(update, ids, clocks, places)
        theirs = self._swap_requests(requests, clocks is not None, operation)
        replies = self._reply(theirs, applies)
        if clocks is not None:
            flags = self._swap_flags(replies, requests)
        else:
            flags = [(torch.ones_like(r.ids, dtype=torch.bool), None) for r in requests]
        rule = None if clocks is None else self.rule
        found = self._swap_rows(replies, requests, flags, rule, wire)
        return join_replies(found, [request.ids for request in requests], self.layout)

    def _requests(
        self,
        update: RowUpdate,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None,
        places: Sequence[Int64[Tensor, " _"]],
    ) -> list[RowRequest]:
        """The request to each rank, given the places of its ids."""
        pushed = places_by_owner(update.ids % self.num_owners, self.ranks.size)
        self._counts.pushes += update.ids.shape[0]
        return [
            RowRequest(update.take(own), ids[place], None if clocks is None else clocks[place])
            for own, place in zip(pushed, places, strict=True)
        ]

    def _swap_requests(
        self, requests: Sequence[RowRequest], has_clocks: bool, operation: str
    ) -> list[RowRequest]:
        """The request from each rank; this rank's own is passed through."""
        me, device = self.ranks.rank, requests[0].ids.device
        written = [(MessageWriter().message(device), (0, 0, 0))] * self.ranks.size
        for receiver, request in enumerate(requests):
            if receiver != me:
                written[receiver] = self._packing.write_request(request, self.wire, self.rule)
        messages = [message for message, _ in written]
        lines = [[*numbers, message.content.shape[0]] for message, numbers in written]
        facts = f"{self._facts}; {self._optimizer()}"
        theirs = swap_headers(self.ranks, operation, facts, lines, device)
        received = self._swap(messages, [size for *_, size in theirs])
        return [
            requests[me]
            if source == me
            else self._packing.read_request(content, numbers, me, has_clocks, self.wire, self.rule)
            for source, (content, (*numbers, _)) in enumerate(zip(received, theirs, strict=True))
        ]

    def _optimizer(self) -> str:
        """What all ranks must share of the rule; its settings may differ: the owner's apply."""
        if self.rule is None:
            return "no optimizer"
        return f"optimizer {type(self.rule).__name__} with state {self.rule.state_widths(2)}"

    def _reply(self, requests: Sequence[RowRequest], applies: bool) -> list[RowReply]:
        """Apply all pushes, or only preview them; then reply to each rank's request."""
        updates = [request.update for request in requests if request.update.ids.numel()]
        averaged: RowUpdate | None = None
        if updates:
            averaged = average_over_workers(updates, self.num_workers, self.layout, self.rule)
        if not applies:
            return [preview_reply(self.owned, averaged, request.ids) for request in requests]
        if averaged is not None:
            self.owned.exchange(averaged, averaged.ids[:0])
        return [self.owned.exchange(None, request.ids, request.clocks) for request in requests]

    def _swap_flags(
        self, replies: Sequence[RowReply], requests: Sequence[RowRequest]
    ) -> list[tuple[Bool[Tensor, " _"], int | None]]:
        """For each owner, `RowReply.stale` and `RowReply.behind`."""
        me = self.ranks.rank
        messages = self._write(replies, self._packing.put_flags)
        sizes = [self._packing.num_flag_bytes(request.ids.shape[0]) for request in requests]
        sizes[me] = 0
        return [
            (replies[me].stale, replies[me].behind)
            if owner == me
            else self._packing.take_flags(MessageReader(content), requests[owner].ids.shape[0])
            for owner, content in enumerate(self._swap(messages, sizes))
        ]

    def _swap_rows(
        self,
        replies: Sequence[RowReply],
        requests: Sequence[RowRequest],
        flags: Sequence[tuple[Bool[Tensor, " _"], int | None]],
        rule: UpdateRule | None,
        wire: Wire,
    ) -> list[RowReply]:
        """The rows that each owner sends; without state if `rule` is `None`."""
        me = self.ranks.rank
        pairs = zip(requests, flags, strict=True)
        by_group = [self.layout.group_sizes(request.ids[stale]) for request, (stale, _) in pairs]
        sizes = [self._packing.num_row_bytes(each, rule, wire) for each in by_group]
        sizes[me] = 0
        messages = self._write(replies, partial(self._packing.put_rows, wire=wire))
        found: list[RowReply] = []
        for owner, content in enumerate(self._swap(messages, sizes)):
            if owner == me:
                found.append(replies[me])
                continue
            reader = MessageReader(content)
            clocks, rows, state = self._packing.take_rows(reader, by_group[owner], rule, wire)
            stale, behind = flags[owner]
            found.append(RowReply(stale, rows, clocks, () if rule is None else state, behind))
        return found

    def _write(
        self, replies: Sequence[RowReply], put: Callable[[MessageWriter, RowReply], None]
    ) -> list[Message]:
        """One message per rank; the one to this rank is empty."""
        messages: list[Message] = []
        for receiver, reply in enumerate(replies):
            writer = MessageWriter()
            if receiver != self.ranks.rank:
                put(writer, reply)
            messages.append(writer.message(reply.stale.device))
        return messages

    def _swap(self, messages: Sequence[Message], sizes: Sequence[int]) -> list[Tensor]:
        """Swap messages with the other ranks, and count the bytes sent."""
        for message in messages:
            for kind, size in message.bytes_by_kind.items():
                self._counts.sent_bytes[kind] += size
        return self.ranks.swap_bytes([message.content for message in messages], sizes)
