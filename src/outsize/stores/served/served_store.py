"""Asynchronous training: sharded rows that every rank serves at any time.

This is a parameter server with one server per rank, like the asynchronous baselines TF PS and HET
PS of HET (VLDB 2022). Workers do not wait for each other, so nothing bounds the lag of a read
except the number of steps that the workers are apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from outsize.contracts import RowCounts, RowReply, RowStore, RowUpdate
from outsize.errors import NonFiniteError
from outsize.kernels.rows.updates import UpdateRule
from outsize.ranks.agreement import require_same_on_all_ranks
from outsize.ranks.collectives import rank, world_size
from outsize.ranks.sections import Message, MessageReader, MessageWriter
from outsize.spec import TableSpec
from outsize.stores.merging import empty_update
from outsize.stores.packing import RowRequest
from outsize.stores.replies import join_replies
from outsize.stores.served.request_channel import Request, RequestChannel
from outsize.stores.shard_owner import ShardOwner


class ServedStore(ShardOwner):
    """Every rank owns a shard of the rows and serves it to the others on request.

    `exchange`, `read`, `add` and a forward pass wait for the owners of the requested rows only. An
    owner applies a push when it arrives, as g/N, so that with SGD a learning rate means the same as
    in a synchronous mean over N workers. (Adagrad normalizes gradients, so N pushes move a row
    further than one mean does.) A rank's own pushes come before its own reads; of other ranks it
    sees the pushes that have arrived. An owner applies the rule that is bound there at the time.
    `submit` does not wait: if an owner refuses the push, the next call raises.

    All ranks construct the store together, and all call the first `bind`, `flush` and `close`. With
    one process it is a local store.

    Args:
        specs: The tables; the same on all ranks.
        seed: As for `LocalStore`; the same on all ranks.
        device: Where this rank keeps its rows.
        wire: Wire format of rows and gradients: "float32", "bfloat16" or "int8". Rows that a rank
            owns itself are not rounded.
    """

    is_asynchronous = True

    def __init__(
        self,
        specs: Sequence[TableSpec],
        seed: int = 0,
        device: torch.device | str = "cpu",
        wire: str = "float32",
    ) -> None:
        super().__init__(specs, seed, device, rank(), world_size(), world_size(), wire)
        self._lock = threading.RLock()  # guards the owned rows, their rule and the counts
        require_same_on_all_ranks(f"{self.layout.facts()}; wire {wire}")
        self._channel = RequestChannel(self._serve) if self.num_workers > 1 else None

    def bind(self, rule: UpdateRule) -> None:
        """Apply updates by this rule; the first call waits for all ranks."""
        is_first = self.rule is None
        with self._lock:
            super().bind(rule)
        if is_first and self._channel is not None:
            require_same_on_all_ranks(self._optimizer_facts())
            self._channel.barrier()

    @torch.no_grad()
    def exchange(  # noqa: D102
        self,
        update: RowUpdate | None,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None = None,
    ) -> RowReply:
        return self._exchange(update, ids, clocks)

    def preview(
        self, update: RowUpdate | None, ids: Int64[Tensor, " n"]
    ) -> tuple[Float[Tensor, "_ _"], ...]:
        """Rows as their owners have them, with an update that they do not apply."""
        return self._exchange(update, ids, None, evaluates=True).rows

    @torch.no_grad()
    def submit(self, update: RowUpdate | None) -> None:
        """Send an update without waiting; if an owner refuses it, the next call raises."""
        started = time.perf_counter()
        self._collect()
        self._begin(update, self._no_ids(), None)
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
        if self._channel is not None and not self._channel.is_closed:
            self._collect()
            self._channel.close()

    def leave(self) -> None:
        """Stop serving at once, and tell the other ranks."""
        if self._channel is not None:
            self._channel.leave()

    def take_counts(self) -> RowCounts:  # noqa: D102
        with self._lock:
            return super().take_counts()

    @torch.no_grad()
    def _exchange(
        self,
        update: RowUpdate | None,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None,
        *,
        evaluates: bool = False,
    ) -> RowReply:
        started = time.perf_counter()
        self._collect()
        requests, own = self._begin(update, ids, clocks, evaluates)
        answers = self._collect()
        replies = [
            own if owner == self.rank else self._read(answers.get(owner), request, evaluates)
            for owner, request in enumerate(requests)
        ]
        with self._lock:
            counts = self._counts_of(evaluates)
            counts.reads += ids.shape[0]
            counts.local += requests[self.rank].ids.shape[0]
            counts.exchange_s += time.perf_counter() - started
        return join_replies(replies, requests)

    def _begin(
        self,
        update: RowUpdate | None,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None,
        evaluates: bool = False,
    ) -> tuple[list[RowRequest], RowReply]:
        """Send requests to other owners, and compute this rank's own reply.

        Returns:
            The request to each rank, and this rank's own reply.
        """
        pushed = update or empty_update(self.layout, ids.device)
        requests = self._requests(pushed, ids, clocks)
        sent = {
            owner: self._write(request, evaluates)
            for owner, request in enumerate(requests)
            if owner != self.rank and request.update.ids.numel() + request.ids.numel()
        }
        if self._channel is not None and sent:
            self._channel.send(sent)
        with self._lock:
            self._counts_of(evaluates).pushes += pushed.ids.shape[0]
            own = self._apply_and_reply(requests[self.rank], self.rank, evaluates)
        return requests, own

    def _write(self, request: RowRequest, evaluates: bool) -> Request:
        """A request to one owner."""
        message, numbers = self._packing.write_request(request, self.wire, self.rule)
        self._count(message, evaluates)
        options = int(request.clocks is not None) + 2 * int(evaluates)
        return Request((*numbers, options), message.content)

    @torch.no_grad()
    def _serve(self, source: int, request: Request) -> UInt8[Tensor, " bytes"]:
        """Answer another rank; runs on the server thread."""
        *numbers, options = request.numbers
        has_clocks, evaluates = bool(options & 1), bool(options & 2)
        content = request.content.to(self._device())
        with self._lock:
            rows = self._packing.read_request(
                content, numbers, self.rank, has_clocks, self.wire, self.rule
            )
            reply = self._apply_and_reply(rows, source, evaluates)
            writer = MessageWriter()
            if rows.ids.numel():
                if has_clocks:
                    self._packing.put_flags(writer, reply)
                self._packing.put_rows(writer, reply, self._wire_of(evaluates))
            message = writer.message(content.device)
            self._count(message, evaluates)
        return message.content

    def _apply_and_reply(self, request: RowRequest, source: int, evaluates: bool) -> RowReply:
        """Apply a rank's update and reply, as the owner; the caller holds the lock."""
        for part in request.update.gradients:
            if not bool(torch.isfinite(part).all()):
                raise NonFiniteError(
                    f"rank {source} pushed gradients with NaN or infinity for rows of rank "
                    f"{self.rank}; nothing was applied there: lower the learning rate, clip "
                    "gradients, or look at the batch's inputs"
                )
        return self._reply([request], evaluates)[0]

    def _read(
        self, content: UInt8[Tensor, " bytes"] | None, request: RowRequest, evaluates: bool
    ) -> RowReply:
        """Decode an owner's reply; without requested rows it is empty."""
        ids, has_clocks = request.ids, request.clocks is not None
        rule = self.rule if has_clocks else None
        stale, behind = torch.ones_like(ids, dtype=torch.bool), None
        if content is None or not ids.numel():
            content = torch.empty(0, dtype=torch.uint8)
        reader = MessageReader(content.to(ids.device))
        if has_clocks and ids.numel():
            stale, behind = self._packing.take_flags(reader, ids.shape[0])
        sizes = self.layout.group_sizes(ids[stale])
        wire = self._wire_of(evaluates)
        clocks, rows, state = self._packing.take_rows(reader, sizes, rule, wire)
        return RowReply(stale, rows, clocks, state if has_clocks else (), behind)

    def _collect(self) -> dict[int, UInt8[Tensor, " bytes"]]:
        """Wait for the answers to the last requests, which are applied by then."""
        return {} if self._channel is None else self._channel.collect()

    def _count(self, message: Message, evaluates: bool) -> None:
        with self._lock:
            self._counts_of(evaluates).see_sent(message.bytes_by_kind)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RowStore:
        with self._lock:
            return super()._apply(fn, recurse)
