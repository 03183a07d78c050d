"""Rows owned by ranks: every step is one round in which all ranks push and ask at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from outsize.collectives import ProcessRanks, RankGroup
from outsize.contracts import RowCounts, RowReply, RowStore, RowUpdate, Shard, TablePart
from outsize.errors import ConfigError
from outsize.kernels.row_updates import UpdateRule
from outsize.spec import MemoryUse, TableSpec
from outsize.stores.local import LocalStore
from outsize.stores.merging import average_over_workers, merge_updates, no_update
from outsize.stores.packing import Message, MessageReader, MessageWriter, Packing, wire_for
from outsize.stores.wire import WIRES, Wire, wire_named


@dataclass(frozen=True)
class _Request:
    """What one rank tells another: what it pushes, what it asks."""

    update: RowUpdate
    ids: Int64[Tensor, " n"]
    clocks: Int64[Tensor, " n"] | None


class ShardedStore(RowStore):
    """Every rank keeps a share of the rows and reads the others from their owners.

    A round goes: counts, then one message from each rank to each other with what it pushes and
    asks, then the answers. Owners first apply what all ranks pushed, merged in the order of ranks,
    averaged over them and applied by the rule once; then they answer. So N ranks with a batch of B
    train as one process with a batch of N·B does. `submit` sends nothing: the update travels with
    the next question, and `flush` brings it home at once. What a rank sends itself is not rounded.

    `exchange`, and with it `read`, `add`, `flush`, a training or evaluating forward, is entered by
    all ranks together, also by one that has nothing to push or ask; with an update (which may be
    empty) or with clocks on all of them or on none.

    Args:
        specs: The tables; the same on all ranks.
        seed: As for `LocalStore`; the same on all ranks.
        device: Where this rank keeps its rows.
        group: The ranks that share the rows; by default all.
        num_owners: How many ranks keep rows, from rank 0 on; by default all.
        wire: How rows and gradients travel: "float32", "bfloat16" or "int8".
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
        super().__init__(specs)
        self.ranks = group if isinstance(group, RankGroup) else ProcessRanks(group)
        self.num_owners = self.ranks.size if num_owners is None else num_owners
        if not 1 <= self.num_owners <= self.ranks.size:
            raise ConfigError(
                f"num_owners must be between 1 and the {self.ranks.size} ranks there are, "
                f"but got {num_owners}"
            )
        self.wire = wire_named(wire)
        self.owned = LocalStore(specs, seed, device, Shard(self.ranks.rank, self.num_owners))
        self._packing = Packing(self.layout, self.num_owners)
        self._held: RowUpdate | None = None
        self._counts = RowCounts()

    @property
    def num_workers(self) -> int:
        """All ranks of the group train."""
        return self.ranks.size

    def bind(self, rule: UpdateRule) -> None:  # noqa: D102
        self.owned.bind(rule)
        self.rule = self.owned.rule

    def is_remote(self, ids: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Rows of other owners."""
        return ids % self.num_owners != self.ranks.rank

    def bytes_per_row(self, dim: int) -> int:  # noqa: D102
        return wire_for(dim, self.wire).bytes_per_row(dim)

    def as_sent(self, vectors: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        return wire_for(vectors.shape[1], self.wire).rounded(vectors)

    def submit(self, update: RowUpdate | None) -> None:
        """Keep an update for the next round; a second one before that goes home at once."""
        if self._held is not None:
            self.flush()
        self._held = update or no_update(self.layout, self._device())

    def flush(self) -> None:
        """Bring a submitted update to the rows; entered by all ranks."""
        if self._held is not None:
            self.exchange(None, torch.empty(0, dtype=torch.int64, device=self._device()))

    @torch.no_grad()
    def exchange(  # noqa: D102
        self,
        update: RowUpdate | None,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None = None,
    ) -> RowReply:
        if update is not None:
            self.flush()
        started = time.perf_counter()
        pushed = update or self._held or no_update(self.layout, ids.device)
        self._held = None
        reply = self._round(pushed, ids, clocks, self.wire)
        self._counts.reads += ids.shape[0]
        self._counts.local += ids.shape[0] - int(self.is_remote(ids).sum())
        self._counts.exchange_s += time.perf_counter() - started
        return reply

    @torch.no_grad()
    def peek(self, ids: Int64[Tensor, " n"]) -> tuple[Float[Tensor, "_ _"], ...]:
        """Rows for evaluation, never rounded; what that sends is not counted."""
        self.flush()
        counts, self._counts = self._counts, RowCounts()
        nothing = no_update(self.layout, ids.device)
        rows = self._round(nothing, ids, None, WIRES["float32"]).rows
        self._counts = counts
        return rows

    def parts(self) -> list[TablePart]:  # noqa: D102
        return self.owned.parts()

    def saves_parts(self) -> bool:
        """A rank beyond the owners keeps nothing."""
        return self.ranks.rank < self.num_owners

    def memory_by_table(self) -> dict[str, MemoryUse]:
        """What this rank's share of each table costs."""
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
    ) -> RowReply:
        """Send and receive requests, apply, answer; the order is the same on all ranks."""
        asked = self._by_owner(ids)
        requests = self._requests(update, ids, clocks, asked)
        messages, counts = self._write_requests(requests)
        theirs = self.ranks.swap_counts(counts).tolist()
        received = self._swap(messages, [size for *_, size in theirs])
        everyone = self._read_requests(received, theirs, clocks is not None)
        everyone[self.ranks.rank] = requests[self.ranks.rank]  # never packed, so never rounded
        answers = self._answer(everyone)
        stale, behind = self._swap_flags(answers, ids, asked, clocks is not None)
        following = [question[stale[question]] for question in asked]
        found = self._swap_rows(
            answers, ids, following, self.rule if clocks is not None else None, wire
        )
        return self._in_order(found, stale, following, behind)

    def _requests(
        self,
        update: RowUpdate,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None,
        asked: Sequence[Int64[Tensor, " _"]],
    ) -> list[_Request]:
        """What each rank is told."""
        pushed = self._by_owner(update.ids)
        self._counts.pushes += update.ids.shape[0]
        return [
            _Request(
                update.take(places), ids[question], None if clocks is None else clocks[question]
            )
            for places, question in zip(pushed, asked, strict=True)
        ]

    def _write_requests(
        self, requests: Sequence[_Request]
    ) -> tuple[list[Message], Int64[Tensor, "size 4"]]:
        """One message for each other rank, and what it holds: rows, rows for good, questions."""
        messages: list[Message] = []
        counts: list[list[int]] = []
        for receiver, request in enumerate(requests):
            writer = MessageWriter()
            numbers = [0, 0, 0]
            if receiver != self.ranks.rank:
                for index, (part, wire) in enumerate(self._by_wire(request.update)):
                    self._packing.put_update(writer, part, wire, self.rule)
                    numbers[index] = part.ids.shape[0]
                self._packing.put_question(writer, request.ids, request.clocks)
                numbers[2] = request.ids.shape[0]
            messages.append(writer.message(request.ids.device))
            counts.append([*numbers, messages[-1].content.shape[0]])
        return messages, torch.tensor(counts, device=requests[0].ids.device)

    def _by_wire(self, update: RowUpdate) -> list[tuple[RowUpdate, Wire]]:
        """The rows that may be rounded, and those of which nobody keeps the rest."""
        wires = (self.wire, self.wire.finer)
        if update.exact is None or not bool(update.exact.any()):
            return list(zip((update, update.take(update.ids[:0])), wires, strict=True))
        flags = (~update.exact, update.exact)
        parts = [update.take(flag.nonzero().flatten()) for flag in flags]
        return list(zip(parts, wires, strict=True))

    def _read_requests(
        self, received: Sequence[Tensor], counts: Sequence[Sequence[int]], has_clocks: bool
    ) -> list[_Request]:
        """What each rank told this one, in the order of ranks."""
        me, wires = self.ranks.rank, (self.wire, self.wire.finer)
        requests: list[_Request] = []
        for content, (*numbers, num_asked, _) in zip(received, counts, strict=True):
            reader = MessageReader(content)
            updates = [
                self._packing.take_update(reader, num, me, wire, self.rule)
                for num, wire in zip(numbers, wires, strict=True)
            ]
            merged = merge_updates(updates, self.layout, self.rule)
            question = self._packing.take_question(reader, num_asked, me, has_clocks)
            requests.append(_Request(merged, *question))
        return requests

    def _answer(self, requests: Sequence[_Request]) -> list[RowReply]:
        """Apply all pushes, then answer each rank's question."""
        updates = [request.update for request in requests if request.update.ids.numel()]
        if updates:
            averaged = average_over_workers(updates, self.num_workers, self.layout, self.rule)
            self.owned.exchange(averaged, averaged.ids[:0])
        return [self.owned.exchange(None, request.ids, request.clocks) for request in requests]

    def _swap_flags(
        self,
        answers: Sequence[RowReply],
        ids: Int64[Tensor, " n"],
        asked: Sequence[Int64[Tensor, " _"]],
        has_clocks: bool,
    ) -> tuple[Bool[Tensor, " n"], int | None]:
        """Which of the rows asked for will follow, and how far behind the others are at most."""
        stale = torch.ones_like(ids, dtype=torch.bool)
        if not has_clocks:
            return stale, None
        me, behind = self.ranks.rank, []
        messages = [self._write(answer, self._packing.put_flags) for answer in answers]
        sizes = [self._packing.num_flag_bytes(question.shape[0]) for question in asked]
        sizes[me] = 0
        for owner, content in enumerate(self._swap(messages, sizes)):
            if owner == me:
                flags, worst = answers[me].stale, answers[me].behind
            else:
                reader = MessageReader(content)
                flags, worst = self._packing.take_flags(reader, asked[owner].shape[0])
            stale[asked[owner]] = flags
            behind += [] if worst is None else [worst]
        return stale, max(behind, default=None)

    def _swap_rows(
        self,
        answers: Sequence[RowReply],
        ids: Int64[Tensor, " n"],
        following: Sequence[Int64[Tensor, " _"]],
        rule: UpdateRule | None,
        wire: Wire,
    ) -> list[RowReply]:
        """What each owner sends of the rows asked of it."""
        me = self.ranks.rank
        by_group = [self.layout.group_sizes(ids[question]) for question in following]
        sizes = [self._packing.num_row_bytes(each, rule, wire) for each in by_group]
        sizes[me] = 0
        messages = [
            self._write(answer, lambda writer, reply: self._packing.put_rows(writer, reply, wire))
            for answer in answers
        ]
        found: list[RowReply] = []
        for owner, content in enumerate(self._swap(messages, sizes)):
            if owner == me:
                found.append(answers[me])
                continue
            parts = self._packing.take_rows(MessageReader(content), by_group[owner], rule, wire)
            clocks, rows, state = parts
            found.append(RowReply(torch.ones_like(clocks, dtype=torch.bool), rows, clocks, state))
        return found

    def _in_order(
        self,
        found: Sequence[RowReply],
        stale: Bool[Tensor, " n"],
        following: Sequence[Int64[Tensor, " _"]],
        behind: int | None,
    ) -> RowReply:
        """The lines of all owners, which come owner by owner, in ascending order of ids."""
        order = torch.cat(list(following)).argsort()
        groups = range(len(self.layout.groups))
        by_group = [[part.shape[0] for part in owner.rows] for owner in found]
        lines = [_lines(by_group, group, order) for group in groups]

        def joined(parts: list[Tensor], group: int) -> Tensor:
            return torch.cat(parts).index_select(0, lines[group])

        return RowReply(
            stale,
            tuple(joined([owner.rows[group] for owner in found], group) for group in groups),
            torch.cat([owner.clocks for owner in found]).index_select(0, order),
            tuple(
                {n: joined([owner.state[group][n] for owner in found], group) for n in state}
                for group, state in enumerate(found[self.ranks.rank].state)
            ),
            behind,
        )

    def _write(self, answer: RowReply, put: Callable[[MessageWriter, RowReply], None]) -> Message:
        """A message for a rank; what this rank has for itself is not written."""
        writer = MessageWriter()
        put(writer, answer)
        return writer.message(answer.stale.device)

    def _swap(self, messages: Sequence[Message], sizes: Sequence[int]) -> list[Tensor]:
        """Send messages to the other ranks, and count them."""
        contents = [message.content for message in messages]
        contents[self.ranks.rank] = contents[self.ranks.rank][:0]
        for receiver, message in enumerate(messages):
            if receiver != self.ranks.rank:
                for kind, size in message.bytes_by_kind.items():
                    self._counts.sent_bytes[kind] += size
        return self.ranks.swap_bytes(contents, sizes)

    def _by_owner(self, ids: Int64[Tensor, " n"]) -> list[Int64[Tensor, " _"]]:
        """For each rank, which of these ids it owns, as ascending places among them."""
        owners = ids % self.num_owners
        order = owners.argsort(stable=True)
        sizes = torch.bincount(owners, minlength=self.ranks.size).tolist()
        return list(order.split(sizes))


def _lines(by_group: Sequence[Sequence[int]], group: int, order: Tensor) -> Tensor:
    """Where the rows of a group, in ascending order of ids, lie in the owners' lines together.

    Args:
        by_group: For each owner, how many rows of each group it sent.
        group: Which group.
        order: Lines of all groups, owner by owner, in ascending order of ids.
    """
    if len(by_group[0]) == 1:
        return order
    # The line of a row among all lines → its line among those of its group.
    owners = torch.tensor(by_group, device=order.device)
    belongs = torch.repeat_interleave(
        torch.arange(len(by_group[0]), device=order.device).repeat(len(by_group)),
        owners.flatten(),
    )
    mine = belongs == group
    place = mine.cumsum(0) - 1
    return place[order[mine[order]]]
