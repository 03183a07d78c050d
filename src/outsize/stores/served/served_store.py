"""Rows owned by ranks that answer at any time: every worker goes at its own pace.

What is called a parameter server, with a server in every rank. Nothing bounds how many updates of
other workers a read misses but how far the workers are apart, which is the price of not waiting
(the asynchronous baselines TF PS and HET PS of HET, VLDB 2022).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from outsize.contracts import RowCounts, RowReply, RowStore, RowUpdate, Shard, TablePart
from outsize.errors import NonFiniteError
from outsize.kernels.rows.updates import UpdateRule
from outsize.ranks.agreement import require_alike
from outsize.ranks.collectives import rank, world_size
from outsize.ranks.owners import places_by_owner
from outsize.ranks.sections import Message, MessageReader, MessageWriter
from outsize.spec import MemoryUse, TableSpec
from outsize.stores.local import LocalStore
from outsize.stores.merging import average_over_workers, no_update
from outsize.stores.packing import Packing, RowRequest
from outsize.stores.replies import join_replies, previewed_reply, refuse_rows_of_others
from outsize.stores.served.request_channel import Request, RequestChannel
from outsize.stores.shard_transport import ShardTransport
from outsize.stores.wire import WIRES, Wire, wire_named


class ServedStore(RowStore):
    """Every rank keeps a share of the rows, and serves it to the others as they ask.

    `exchange`, `read`, `add` and a forward of one rank wait for the owners of the rows in question
    and for nobody else. A push is applied as soon as it arrives, as g/N, so that a learning rate
    means what it means in a synchronous mean over N workers (under Adagrad, which divides by the
    size of what it has seen, N pushes move a row further than one mean does). A rank's own pushes
    come before its own reads; of others' it sees what has arrived. An owner applies the rule as it
    is bound there at the time. `submit` does not wait: an owner's refusal is told by the next call.

    All ranks enter together: making the store, the first `bind`, `flush` and `close`. With one
    process it is a local store.

    Args:
        specs: The tables; the same on all ranks.
        seed: As for `LocalStore`; the same on all ranks.
        device: Where this rank keeps its rows.
        wire: How rows and gradients travel: "float32", "bfloat16" or "int8"; those that stay in
            their rank are not rounded.
    """

    is_shared = True
    is_asynchronous = True

    def __init__(
        self,
        specs: Sequence[TableSpec],
        seed: int = 0,
        device: torch.device | str = "cpu",
        wire: str = "float32",
    ) -> None:
        super().__init__(specs, seed)
        self.rank, self.size = rank(), world_size()
        self.wire = wire_named(wire)
        self.transport = ShardTransport(self.rank, self.size, self.wire)
        self.owned = LocalStore(specs, seed, device, Shard(self.rank, self.size))
        self._packing = Packing(self.layout, self.size)
        self._counts = RowCounts()
        self._lock = threading.RLock()  # over the owned rows, their rule and the counts
        self.register_load_state_dict_pre_hook(refuse_rows_of_others)
        require_alike(f"{self.layout.facts()}; wire {wire}")
        self._channel = RequestChannel(self._serve) if self.size > 1 else None

    @property
    def num_workers(self) -> int:
        """All ranks train."""
        return self.size

    def bind(self, rule: UpdateRule) -> None:
        """As the contract says; the first time it waits for all ranks, so that all can apply it."""
        is_first = self.rule is None
        with self._lock:
            self.owned.bind(rule)
            self.rule = self.owned.rule
        if is_first and self._channel is not None:
            require_alike(f"optimizer {type(rule).__name__} with state {rule.state_widths(2)}")
            self._channel.meet()

    @torch.no_grad()
    def exchange(  # noqa: D102
        self,
        update: RowUpdate | None,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None = None,
    ) -> RowReply:
        return self._exchange(update, ids, clocks, counted=True)

    def preview(
        self, update: RowUpdate | None, ids: Int64[Tensor, " n"]
    ) -> tuple[Float[Tensor, "_ _"], ...]:
        """Rows as owners have them, never rounded; not counted, and an update is not applied."""
        return self._exchange(update, ids, None, counted=False).rows

    @torch.no_grad()
    def submit(self, update: RowUpdate | None) -> None:
        """Send an update on its way; what its owners say to it is heard by the next call."""
        started = time.perf_counter()
        self._collect()
        self._begin(update, torch.empty(0, dtype=torch.int64, device=self._device()), None, True)
        with self._lock:
            self._counts.exchange_s += time.perf_counter() - started

    def flush(self) -> None:
        """Wait until every update of every rank is applied; entered by all ranks."""
        self._collect()
        if self._channel is not None:
            self._channel.meet()

    def close(self) -> None:
        """Serve until no rank needs rows any more; entered by all ranks.

        After it, only this rank's own rows are within reach: by `parts`.
        """
        if self._channel is not None and not self._channel.is_closed:
            self._collect()
            self._channel.close()

    def leave(self) -> None:
        """Stop serving at once, and tell the other ranks."""
        if self._channel is not None:
            self._channel.leave()

    def parts(self) -> list[TablePart]:  # noqa: D102
        return self.owned.parts()

    def memory_by_table(self) -> dict[str, MemoryUse]:
        """What this rank's share of each table costs."""
        return self.owned.memory_by_table()

    def take_counts(self) -> RowCounts:  # noqa: D102
        with self._lock:
            counts, self._counts = self._counts, RowCounts()
        return counts

    @torch.no_grad()
    def _exchange(
        self,
        update: RowUpdate | None,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None,
        *,
        counted: bool,
    ) -> RowReply:
        started = time.perf_counter()
        self._collect()
        asked, own = self._begin(update, ids, clocks, counted)
        answers = self._collect()
        replies = [own if owner == self.rank else None for owner in range(self.size)]
        for owner, questions in enumerate(asked):
            if owner != self.rank:
                wire = self._wire(counted)
                replies[owner] = self._read(answers.get(owner), questions, clocks is not None, wire)
        if counted:
            with self._lock:
                self._counts.reads += ids.shape[0]
                self._counts.local += asked[self.rank].shape[0]
                self._counts.exchange_s += time.perf_counter() - started
        return join_replies([reply for reply in replies if reply], asked, self.layout)

    def _begin(
        self,
        update: RowUpdate | None,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None,
        counted: bool,
    ) -> tuple[list[Int64[Tensor, " _"]], RowReply]:
        """Send requests to other owners, and serve what is asked of this one.

        Returns:
            The ids asked of each rank, and this rank's own answer.
        """
        pushed = update or no_update(self.layout, ids.device)
        places, questions = (
            places_by_owner(rows % self.size, self.size) for rows in (pushed.ids, ids)
        )
        requests: dict[int, Request] = {}
        for owner in range(self.size):
            if owner == self.rank or not places[owner].numel() + questions[owner].numel():
                continue
            chosen = None if clocks is None else clocks[questions[owner]]
            request = RowRequest(pushed.take(places[owner]), ids[questions[owner]], chosen)
            requests[owner] = self._write(request, counted)
        if self._channel is not None and requests:
            self._channel.send(requests)
        mine = questions[self.rank]
        own_clocks = None if clocks is None else clocks[mine]
        with self._lock:
            self._counts.pushes += pushed.ids.shape[0] if counted else 0
            own = self._apply_and_answer(
                [pushed.take(places[self.rank])], ids[mine], own_clocks, self.rank, counted
            )
        return [ids[question] for question in questions], own

    def _write(self, request: RowRequest, counted: bool) -> Request:
        """A request to one owner."""
        message, numbers = self._packing.write_request(request, self.wire, self.rule)
        if counted:
            self._count(message)
        options = int(request.clocks is not None) + 2 * int(counted)
        return Request((*numbers, options), message.content)

    def _wire(self, counted: bool) -> Wire:
        """How rows travel: unrounded for evaluation, which is what is not counted."""
        return self.wire if counted else WIRES["float32"]

    @torch.no_grad()
    def _serve(self, source: int, request: Request) -> UInt8[Tensor, " bytes"]:
        """Answer another rank; on the channel's thread."""
        *numbers, options = request.numbers
        has_clocks, counted = bool(options & 1), bool(options & 2)
        content = request.content.to(self._device())
        with self._lock:
            asked = self._packing.read_request(
                content, numbers, self.rank, has_clocks, self.wire, self.rule
            )
            reply = self._apply_and_answer([asked.update], asked.ids, asked.clocks, source, counted)
            writer = MessageWriter()
            if asked.ids.numel():
                if has_clocks:
                    self._packing.put_flags(writer, reply)
                self._packing.put_rows(writer, reply, self._wire(counted))
            message = writer.message(content.device)
            if counted:
                self._count(message)
        return message.content

    def _apply_and_answer(
        self,
        updates: Sequence[RowUpdate],
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None,
        source: int,
        applies: bool,
    ) -> RowReply:
        """What an owner does; under the lock. For evaluation it applies nothing."""
        updates = [update for update in updates if update.ids.numel()]
        for part in (part for update in updates for part in update.gradients):
            if not bool(torch.isfinite(part).all()):
                raise NonFiniteError(
                    f"rank {source} pushed gradients with NaN or infinity for rows of rank "
                    f"{self.rank}; nothing was applied there: lower the learning rate, clip "
                    "gradients, or look at the batch's inputs"
                )
        pushed = None
        if updates:
            pushed = average_over_workers(updates, self.num_workers, self.layout, self.rule)
        if not applies:
            return previewed_reply(self.owned, pushed, ids)
        return self.owned.exchange(pushed, ids, clocks)

    def _read(
        self,
        content: UInt8[Tensor, " bytes"] | None,
        ids: Int64[Tensor, " n"],
        has_clocks: bool,
        wire: Wire,
    ) -> RowReply:
        """An owner's answer; one that was asked nothing has none."""
        rule = self.rule if has_clocks else None
        stale, behind = torch.ones_like(ids, dtype=torch.bool), None
        if content is None or not ids.numel():
            content = torch.empty(0, dtype=torch.uint8)
        reader = MessageReader(content.to(ids.device))
        if has_clocks and ids.numel():
            stale, behind = self._packing.take_flags(reader, ids.shape[0])
        sizes = self.layout.group_sizes(ids[stale])
        clocks, rows, state = self._packing.take_rows(reader, sizes, rule, wire)
        return RowReply(stale, rows, clocks, state if has_clocks else (), behind)

    def _collect(self) -> dict[int, UInt8[Tensor, " bytes"]]:
        """Answers to what was sent last, which tell that it was applied."""
        return {} if self._channel is None else self._channel.collect()

    def _count(self, message: Message) -> None:
        with self._lock:
            for kind, size in message.bytes_by_kind.items():
                self._counts.sent_bytes[kind] += size

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RowStore:
        with self._lock:
            return super()._apply(fn, recurse)
