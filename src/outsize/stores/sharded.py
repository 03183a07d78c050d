"""Rows owned by ranks: every step is one round in which all ranks push and ask at once."""

from __future__ import annotations

import time
from collections.abc import Sequence

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
from outsize.stores.merging import average_over_workers, no_update
from outsize.stores.packing import Message, MessageReader, MessageWriter, Packing
from outsize.stores.wire import WIRES, wire_named


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
        self._packing = Packing(self.layout, self.num_owners, self.wire)
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
        return (WIRES["float32"] if dim == 1 else self.wire).bytes_per_row(dim)

    def as_sent(self, vectors: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        return vectors if vectors.shape[1] == 1 else self.wire.rounded(vectors)

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
        reply = self._round(pushed, ids, clocks, exact=False)
        self._counts.reads += ids.shape[0]
        self._counts.local += ids.shape[0] - int(self.is_remote(ids).sum())
        self._counts.exchange_s += time.perf_counter() - started
        return reply

    @torch.no_grad()
    def peek(self, ids: Int64[Tensor, " n"]) -> tuple[Float[Tensor, "_ _"], ...]:
        """Rows for evaluation, never rounded; what that sends is not counted."""
        self.flush()
        counts, self._counts = self._counts, RowCounts()
        rows = self._round(no_update(self.layout, ids.device), ids, None, exact=True).rows
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
        exact: bool,
    ) -> RowReply:
        """Send and receive requests, apply, answer; the order is the same on all ranks."""
        asked = self._by_owner(ids)
        requests, counts = self._write_requests(update, ids, clocks, asked)
        theirs = self.ranks.swap_counts(counts)
        sizes = theirs[:, -1].tolist()
        received = self._swap(requests, sizes)
        answers = self._answer(received, theirs.tolist(), clocks is not None)
        return self._read_answers(answers, ids, asked, clocks is not None, exact)

    def _write_requests(
        self,
        update: RowUpdate,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None,
        asked: Sequence[Int64[Tensor, " _"]],
    ) -> tuple[list[Message], Int64[Tensor, "size 4"]]:
        """One message for each rank, and what it holds: rounded rows, exact rows, questions."""
        exact = update.exact
        marked = torch.zeros_like(update.ids, dtype=torch.bool) if exact is None else exact
        pushed = self._by_owner(update.ids)
        messages: list[Message] = []
        counts: list[list[int]] = []
        for receiver, (places, question) in enumerate(zip(pushed, asked, strict=True)):
            writer = MessageWriter()
            flags = marked[places] | (receiver == self.ranks.rank)
            for kind, flag in ((False, ~flags), (True, flags)):
                part = update.take(places[flag])
                self._packing.put_update(writer, part, kind, self.rule)
            chosen = None if clocks is None else clocks[question]
            self._packing.put_question(writer, ids[question], chosen)
            messages.append(writer.message(ids.device))
            num_exact = int(flags.sum())
            numbers = (places.shape[0] - num_exact, num_exact, question.shape[0])
            counts.append([*numbers, messages[-1].content.shape[0]])
        self._counts.pushes += update.ids.shape[0]
        return messages, torch.tensor(counts, device=ids.device)

    def _answer(
        self, received: Sequence[Tensor], counts: Sequence[Sequence[int]], has_clocks: bool
    ) -> list[RowReply]:
        """Apply all pushes, then answer each rank's question."""
        updates: list[RowUpdate] = []
        questions: list[tuple[Tensor, Tensor | None]] = []
        me = self.ranks.rank
        for content, (num_rounded, num_exact, num_asked, _) in zip(received, counts, strict=True):
            reader = MessageReader(content)
            for num, exact in ((num_rounded, False), (num_exact, True)):
                found = self._packing.take_update(reader, num, me, exact, self.rule)
                if num:
                    updates.append(found)
            questions.append(self._packing.take_question(reader, num_asked, me, has_clocks))
        if updates:
            averaged = average_over_workers(updates, self.num_workers, self.layout, self.rule)
            self.owned.exchange(averaged, averaged.ids[:0])
        return [self.owned.exchange(None, ids, clocks) for ids, clocks in questions]

    def _read_answers(
        self,
        answers: Sequence[RowReply],
        ids: Int64[Tensor, " n"],
        asked: Sequence[Int64[Tensor, " _"]],
        has_clocks: bool,
        exact: bool,
    ) -> RowReply:
        """Send answers back and put those received in the order asked."""
        stale = torch.ones_like(ids, dtype=torch.bool)
        behind: list[int] = []
        if has_clocks:
            flags = [self._write_flags(answer) for answer in answers]
            sizes = [self._packing.num_flag_bytes(question.shape[0]) for question in asked]
            for content, question in zip(self._swap(flags, sizes), asked, strict=True):
                reader = MessageReader(content)
                stale[question], worst = self._packing.take_flags(reader, question.shape[0])
                behind += [] if worst is None else [worst]
        rule = self.rule if has_clocks else None
        following = [question[stale[question]] for question in asked]
        by_group = [self.layout.group_sizes(ids[question]) for question in following]
        unrounded = [exact or other == self.ranks.rank for other in range(self.ranks.size)]
        rows = [self._write_rows(a, flag) for a, flag in zip(answers, unrounded, strict=True)]
        sizes = [
            self._packing.num_row_bytes(each, rule, flag)
            for each, flag in zip(by_group, unrounded, strict=True)
        ]
        found = [
            self._packing.take_rows(MessageReader(content), each, rule, flag)
            for content, each, flag in zip(
                self._swap(rows, sizes), by_group, unrounded, strict=True
            )
        ]
        # Lines of all owners, owner by owner, into ascending order of ids.
        order = torch.cat(following).argsort()
        groups = range(len(self.layout.groups))
        lines = [_lines(by_group, group, order) for group in groups]
        state = tuple(
            {
                name: torch.cat([owner[2][group][name] for owner in found])[lines[group]]
                for name in found[0][2][group]
            }
            for group in groups
        )
        return RowReply(
            stale,
            tuple(
                torch.cat([owner[1][group] for owner in found])[lines[group]] for group in groups
            ),
            torch.cat([owner[0] for owner in found])[order],
            state if has_clocks else (),
            max(behind, default=None),
        )

    def _write_flags(self, answer: RowReply) -> Message:
        writer = MessageWriter()
        self._packing.put_flags(writer, answer.stale, answer.behind)
        return writer.message(answer.stale.device)

    def _write_rows(self, answer: RowReply, exact: bool) -> Message:
        writer = MessageWriter()
        self._packing.put_rows(writer, answer, exact)
        return writer.message(answer.stale.device)

    def _swap(self, messages: Sequence[Message], sizes: Sequence[int]) -> list[Tensor]:
        """Send messages to all ranks, and count what leaves this one."""
        for receiver, message in enumerate(messages):
            if receiver != self.ranks.rank:
                for kind, size in message.bytes_by_kind.items():
                    self._counts.sent_bytes[kind] += size
        return self.ranks.swap_bytes([message.content for message in messages], sizes)

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
