"""Rows sharded over ranks: in each step, all ranks push and read in one collective round."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from outsize.contracts import RowCounts, RowReply, RowUpdate
from outsize.errors import ConfigError
from outsize.kernels.rows.updates import UpdateRule
from outsize.ranks.agreement import swap_headers
from outsize.ranks.collectives import ProcessRanks, RankGroup
from outsize.ranks.failures import announce_failure
from outsize.ranks.sections import Message, MessageReader, MessageWriter
from outsize.spec import TableSpec
from outsize.stores.compiled_rounds import CompiledRound, compiled_round
from outsize.stores.merging import empty_update, merge_updates
from outsize.stores.packing import RowRequest
from outsize.stores.pushed_lines import PushedLines
from outsize.stores.replies import join_replies
from outsize.stores.round_format import Format, round_format
from outsize.stores.shard_owner import ShardOwner
from outsize.stores.wire import Wire


class ShardedStore(ShardOwner):
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

    def __init__(
        self,
        specs: Sequence[TableSpec],
        seed: int = 0,
        device: torch.device | str = "cpu",
        group: dist.ProcessGroup | RankGroup | None = None,
        num_owners: int | None = None,
        wire: str = "float32",
    ) -> None:
        ranks = group if isinstance(group, RankGroup) else ProcessRanks(group)
        owners = ranks.size if num_owners is None else num_owners
        if not 1 <= owners <= ranks.size:
            raise ConfigError(
                f"num_owners must be between 1 and the {ranks.size} ranks there are, "
                f"but got {num_owners}"
            )
        super().__init__(specs, seed, device, ranks.rank, ranks.size, owners, wire)
        self.ranks: RankGroup = ranks
        self._shared_ranks: ProcessRanks | None = None
        self._facts = f"{self.layout.facts()}; {owners} owners; wire {wire}"
        self._held: RowUpdate | None = None

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
            self._push_and_read(None, self._no_ids(), None, operation)

    def any_rank(self, flag: bool) -> bool:  # noqa: D102
        lines = [[int(flag)]] * self.num_workers
        flags = swap_headers(
            self.ranks, "a check for infinities", self._facts, lines, self._device()
        )
        return any(number for (number,) in flags)

    def fail(self) -> None:  # noqa: D102
        announce_failure(self.ranks, self._device())

    def use_own_group(self) -> None:  # noqa: D102
        if isinstance(self.ranks, ProcessRanks):
            self._shared_ranks, self.ranks = self.ranks, self.ranks.own_group()

    def close(self) -> None:
        """Let go of a process group of its own; the rows stay."""
        if self._shared_ranks is not None:
            self.ranks = self._shared_ranks

    def leave(self) -> None:  # noqa: D102
        self.close()

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
        reply = self._round(pushed, ids, clocks, operation)
        self._counts.pushes += pushed.ids.shape[0]
        self._counts.reads += ids.shape[0]
        self._counts.exchange_s += time.perf_counter() - started
        return reply

    @torch.no_grad()
    def preview(
        self, update: RowUpdate | None, ids: Int64[Tensor, " n"]
    ) -> tuple[Float[Tensor, "_ _"], ...]:
        """Rows as a flush of all ranks would leave them."""
        updates = [u for u in (self._held, update) if u is not None]
        pushed = merge_updates(
            updates or [empty_update(self.layout, ids.device)], self.layout, self.rule
        )
        return self._round(pushed, ids, None, "a read for evaluation", evaluates=True).rows

    def saves_parts(self) -> bool:
        """Whether this rank owns rows."""
        return self.rank < self.num_owners

    def _round(
        self,
        update: RowUpdate,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None,
        operation: str,
        *,
        evaluates: bool = False,
    ) -> RowReply:
        """Swap requests, apply updates, swap replies; in the same order on all ranks."""
        counts, wire = self._counts_of(evaluates), self._wire_of(evaluates)
        if not evaluates:
            compiled = compiled_round(
                self.owned, self.rule, self.wire, self.rank, self.num_owners, self.num_workers,
                update, ids, clocks,
            )  # fmt: skip
            if compiled is not None:
                return compiled.read_rows(self.swap_compiled(compiled, operation))
        requests = self._requests(update, ids, clocks)
        counts.local += requests[self.rank].ids.shape[0]
        theirs = self._swap_requests(requests, clocks is not None, operation, counts)
        replies = self._reply(theirs, evaluates)
        if clocks is not None:
            flags = self._swap_flags(replies, requests, counts)
        else:
            flags = [(torch.ones_like(r.ids, dtype=torch.bool), None) for r in requests]
        rule = None if clocks is None else self.rule
        found = self._swap_rows(replies, requests, flags, rule, wire, counts)
        return join_replies(found, requests)

    def swap_compiled(self, compiled: CompiledRound, operation: str) -> list[Tensor]:
        """Swap requests, apply updates, swap replies; returns the rows that each rank sends."""
        swap = self.ranks.swap_bytes
        self._counts.local += compiled.num_local
        messages, lines = compiled.write_requests(self._counts)
        theirs = self._swap_headers(operation, lines, messages[0].device)
        compiled.apply(swap(messages, [size for *_, size in theirs]), theirs)
        flags, rows = compiled.write_replies(self._counts)
        if compiled.has_clocks:
            sizes = compiled.read_flags(swap(flags, compiled.num_flag_bytes()))
        else:
            sizes = compiled.sizes_without_flags()
        return swap(rows, sizes)

    def exchange_lines(
        self,
        form: Format,
        pushed: PushedLines,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"],
    ) -> tuple[CompiledRound, list[Tensor]]:
        """`exchange` by compiled kernels; returns the round and the rows that each rank sends."""
        assert self.rule is not None
        assert self._held is None
        started = time.perf_counter()
        compiled = CompiledRound(self.owned, self.rule, form, pushed, ids, clocks, self.num_workers)
        rows = self.swap_compiled(compiled, "a read for training by a cache")
        self._counts.pushes += len(pushed.ids)
        self._counts.reads += ids.shape[0]
        self._counts.exchange_s += time.perf_counter() - started
        return compiled, rows

    def lines_format(self) -> Format | None:
        """The format for `exchange_lines`; `None` if kernels cannot do the next round."""
        if self._held is not None:
            return None
        return round_format(
            self.owned, self.rule, self.wire, self.rank, self.num_owners, self.num_workers
        )

    def _swap_headers(
        self, operation: str, lines: Sequence[Sequence[int]], device: torch.device
    ) -> list[list[int]]:
        """The numbers that each rank sends before its request."""
        facts = f"{self._facts}; {self._optimizer_facts()}"
        return swap_headers(self.ranks, operation, facts, lines, device)

    def _swap_requests(
        self,
        requests: Sequence[RowRequest],
        has_clocks: bool,
        operation: str,
        counts: RowCounts,
    ) -> list[RowRequest]:
        """The request from each rank; this rank's own is passed through."""
        me, device = self.rank, requests[0].ids.device
        written = [(MessageWriter().message(device), (0, 0, 0))] * self.num_workers
        for receiver, request in enumerate(requests):
            if receiver != me:
                written[receiver] = self._packing.write_request(request, self.wire, self.rule)
        messages = [message for message, _ in written]
        lines = [[*numbers, message.content.shape[0]] for message, numbers in written]
        theirs = self._swap_headers(operation, lines, device)
        received = self._swap(messages, [size for *_, size in theirs], counts)
        return [
            requests[me]
            if source == me
            else self._packing.read_request(
                content, numbers, me, has_clocks, self.wire, self.rule, with_squares=False
            )
            for source, (content, (*numbers, _)) in enumerate(zip(received, theirs, strict=True))
        ]

    def _swap_flags(
        self, replies: Sequence[RowReply], requests: Sequence[RowRequest], counts: RowCounts
    ) -> list[tuple[Bool[Tensor, " _"], int | None]]:
        """For each owner, `RowReply.stale` and `RowReply.behind`."""
        me = self.rank
        messages = self._write(replies, self._packing.put_flags)
        sizes = [self._packing.num_flag_bytes(request.ids.shape[0]) for request in requests]
        sizes[me] = 0
        return [
            (replies[me].stale, replies[me].behind)
            if owner == me
            else self._packing.take_flags(MessageReader(content), requests[owner].ids.shape[0])
            for owner, content in enumerate(self._swap(messages, sizes, counts))
        ]

    def _swap_rows(
        self,
        replies: Sequence[RowReply],
        requests: Sequence[RowRequest],
        flags: Sequence[tuple[Bool[Tensor, " _"], int | None]],
        rule: UpdateRule | None,
        wire: Wire,
        counts: RowCounts,
    ) -> list[RowReply]:
        """The rows that each owner sends; without state if `rule` is `None`."""
        me, is_one_group = self.rank, self.layout.is_one_group
        by_group: list[list[int]] = []
        for owner, (request, (stale, _)) in enumerate(zip(requests, flags, strict=True)):
            if owner == me:
                by_group.append([0] * len(self.layout.groups))
            elif is_one_group:
                by_group.append([int(stale.count_nonzero())])
            else:
                by_group.append(self.layout.group_sizes(request.ids[stale]))
        sizes = [self._packing.num_row_bytes(each, rule, wire) for each in by_group]
        messages = self._write(replies, partial(self._packing.put_rows, wire=wire))
        found: list[RowReply] = []
        for owner, content in enumerate(self._swap(messages, sizes, counts)):
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
            if receiver != self.rank:
                put(writer, reply)
            messages.append(writer.message(reply.stale.device))
        return messages

    def _swap(
        self, messages: Sequence[Message], sizes: Sequence[int], counts: RowCounts
    ) -> list[Tensor]:
        """Swap messages with the other ranks, and count the bytes sent."""
        for message in messages:
            counts.see_sent(message.bytes_by_kind)
        return self.ranks.swap_bytes([message.content for message in messages], sizes)
