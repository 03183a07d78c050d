"""Asynchronous training: sharded rows that every rank serves at any time.

This is a parameter server with one server per rank, like the asynchronous baselines TF PS and HET
PS of HET (VLDB 2022). Workers do not wait for each other, so only the number of steps that
they are apart bounds the lag of a read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from outsize.contracts import RowCounts, RowReply, RowStore, RowUpdate, Shard, TablePart
from outsize.errors import NonFiniteError
from outsize.kernels.rows.updates import UpdateRule
from outsize.ranks.agreement import require_same_on_all_ranks
from outsize.ranks.collectives import rank, world_size
from outsize.ranks.owners import places_by_owner
from outsize.ranks.sections import Message, MessageReader, MessageWriter
from outsize.spec import MemoryUse, TableSpec
from outsize.stores.local import LocalStore
from outsize.stores.merging import average_over_workers, empty_update
from outsize.stores.packing import Packing, RowRequest
from outsize.stores.replies import join_replies, preview_reply, refuse_state_dict
from outsize.stores.served.request_channel import Request, RequestChannel
from outsize.stores.shard_transport import ShardTransport
from outsize.stores.wire import WIRES, Wire, wire_named


class ServedStore(RowStore):
    """Every rank owns a shard of the rows and serves it to the others on request.

    `exchange`, `read`, `add` and a forward pass wait for the owners of the requested rows only. An
    owner applies a push when it arrives, as g/N, so that with SGD a learning rate means the same as
    in a synchronous mean over N workers. (Adagrad normalizes gradients, so N pushes move a row
    further than one mean does.) A rank's own pushes come before its own reads; of other ranks it
    sees the pushes that have arrived. An owner applies the rule that is bound there at the time.
    `submit` does not wait: if an owner refuses the push, the next call raises.

    All ranks construct the store together, and all call the first `bind`, `flush` and `close`. With
    one process it is a local store. As a context manager, the store closes at the end of the block,
    or leaves without waiting on an error.

    Args:
        specs: The tables; the same on all ranks.
        seed: As for `LocalStore`; the same on all ranks.
        device: Where this rank keeps its rows.
        wire: Wire format of rows and gradients: "float32", "bfloat16" or "int8". Rows that a rank
            owns itself are not rounded.
    """

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
        self._lock = threading.RLock()  # guards the owned rows, their rule and the counts
        self.register_load_state_dict_pre_hook(refuse_state_dict)
        require_same_on_all_ranks(f"{self.layout.facts()}; wire {wire}")
        self._channel = RequestChannel(self._serve) if self.size > 1 else None

    def __enter__(self) -> ServedStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._channel is not None and error is not None:
            self._channel.leave()
        else:
            self.close()

    @property
    def num_workers(self) -> int:
        """All ranks train."""
        return self.size

    def bind(self, rule: UpdateRule) -> None:
        """Apply updates by this rule; the first call waits for all ranks."""
        is_first = self.rule is None
        with self._lock:
            self.owned.bind(rule)
            self.rule = self.owned.rule
        if is_first and self._channel is not None:
            require_same_on_all_ranks(
                f"optimizer {type(rule).__name__} with state {rule.state_widths(2)}"
            )
            self._channel.barrier()

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
        """Rows as their owners have them, never rounded. Nothing is applied or counted."""
        return self._exchange(update, ids, None, counted=False).rows

    @torch.no_grad()
    def submit(self, update: RowUpdate | None) -> None:
        """Send an update without waiting; if an owner refuses it, the next call raises."""
        started = time.perf_counter()
        self._collect()
        self._begin(update, torch.empty(0, dtype=torch.int64, device=self._device()), None, True)
        with self._lock:
            self._counts.exchange_s += time.perf_counter() - started

    def flush(self) -> None:
        """Wait until every update of every rank is applied; all ranks call it."""
        self._collect()
        if self._channel is not None:
            self._channel.barrier()

    def close(self) -> None:
        """Serve until no rank needs rows any more; all ranks call it.

        Afterwards only this rank's own rows can be read, through `parts`.
        """
        self._collect()
        if self._channel is not None:
            self._channel.close()

    def parts(self) -> list[TablePart]:  # noqa: D102
        return self.owned.parts()

    def memory_by_table(self) -> dict[str, MemoryUse]:
        """Memory of this rank's shard of each table."""
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
        requested, own = self._begin(update, ids, clocks, counted)
        answers = self._collect()
        replies = [own if owner == self.rank else None for owner in range(self.size)]
        for owner, owned in enumerate(requested):
            if owner != self.rank:
                wire = self._wire(counted)
                replies[owner] = self._read(answers.get(owner), owned, clocks is not None, wire)
        if counted:
            with self._lock:
                self._counts.reads += ids.shape[0]
                self._counts.local += requested[self.rank].shape[0]
                self._counts.exchange_s += time.perf_counter() - started
        return join_replies([reply for reply in replies if reply], requested, self.layout)

    def _begin(
        self,
        update: RowUpdate | None,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None,
        counted: bool,
    ) -> tuple[list[Int64[Tensor, " _"]], RowReply]:
        """Send requests to other owners, and compute this rank's own reply.

        Returns:
            The ids requested from each rank, and this rank's own reply.
        """
        pushed = update or empty_update(self.layout, ids.device)
        push_places, read_places = (
            places_by_owner(rows % self.size, self.size) for rows in (pushed.ids, ids)
        )
        requests: dict[int, Request] = {}
        for owner in range(self.size):
            if owner == self.rank or not push_places[owner].numel() + read_places[owner].numel():
                continue
            owned = read_places[owner]
            chosen = None if clocks is None else clocks[owned]
            request = RowRequest(pushed.take(push_places[owner]), ids[owned], chosen)
            requests[owner] = self._write(request, counted)
        if self._channel is not None and requests:
            self._channel.send(requests)
        mine = read_places[self.rank]
        own_clocks = None if clocks is None else clocks[mine]
        with self._lock:
            self._counts.pushes += pushed.ids.shape[0] if counted else 0
            own = self._apply_and_reply(
                [pushed.take(push_places[self.rank])], ids[mine], own_clocks, self.rank, counted
            )
        return [ids[places] for places in read_places], own

    def _write(self, request: RowRequest, counted: bool) -> Request:
        """A request to one owner."""
        message, numbers = self._packing.write_request(request, self.wire, self.rule)
        if counted:
            self._count(message)
        options = int(request.clocks is not None) + 2 * int(counted)
        return Request((*numbers, options), message.content)

    def _wire(self, counted: bool) -> Wire:
        """The wire format; evaluation reads, which are not counted, are not rounded."""
        return self.wire if counted else WIRES["float32"]

    @torch.no_grad()
    def _serve(self, source: int, request: Request) -> UInt8[Tensor, " bytes"]:
        """Answer another rank; runs on the server thread."""
        *numbers, options = request.numbers
        has_clocks, counted = bool(options & 1), bool(options & 2)
        content = request.content.to(self._device())
        with self._lock:
            rows = self._packing.read_request(
                content, numbers, self.rank, has_clocks, self.wire, self.rule
            )
            reply = self._apply_and_reply([rows.update], rows.ids, rows.clocks, source, counted)
            writer = MessageWriter()
            if rows.ids.numel():
                if has_clocks:
                    self._packing.put_flags(writer, reply)
                self._packing.put_rows(writer, reply, self._wire(counted))
            message = writer.message(content.device)
            if counted:
                self._count(message)
        return message.content

    def _apply_and_reply(
        self,
        updates: Sequence[RowUpdate],
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None,
        source: int,
        applies: bool,
    ) -> RowReply:
        """Apply updates and reply, as the owner; the caller holds the lock."""
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
            return preview_reply(self.owned, pushed, ids)
        return self.owned.exchange(pushed, ids, clocks)

    def _read(
        self,
        content: UInt8[Tensor, " bytes"] | None,
        ids: Int64[Tensor, " n"],
        has_clocks: bool,
        wire: Wire,
    ) -> RowReply:
        """Decode an owner's reply; without requested rows it is empty."""
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
        """Wait for the answers to the last requests, which are applied by then."""
        return {} if self._channel is None else self._channel.collect()

    def _count(self, message: Message) -> None:
        with self._lock:
            for kind, size in message.bytes_by_kind.items():
                self._counts.sent_bytes[kind] += size

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RowStore:
        with self._lock:
            return super()._apply(fn, recurse)
