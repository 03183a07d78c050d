"""What a rank does as the owner of a shard of the rows, and how rows travel between owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from outsize.contracts import (
    RowCounts,
    RowReply,
    RowStore,
    RowUpdate,
    Shard,
    TablePart,
    Transport,
)
from outsize.errors import ConfigError
from outsize.kernels.exchange.routes import by_owner, modulo, newer_rows
from outsize.kernels.rows.updates import UpdateRule
from outsize.spec import MemoryUse, TableSpec
from outsize.stores.local import LocalStore
from outsize.stores.merging import average_over_workers
from outsize.stores.packing import Packing, RowRequest
from outsize.stores.wire import WIRES, Wire, wire_for, wire_named


class ShardTransport(Transport):
    """Rows of other owners travel, rounded by a wire format; those of this rank are local."""

    def __init__(self, rank: int, num_owners: int, wire: Wire) -> None:
        self._rank = rank
        self._num_owners = num_owners
        self._wire = wire

    def is_remote(self, ids: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Which rows have another owner."""
        return modulo(ids, self._num_owners) != self._rank

    @property
    def has_remote_rows(self) -> bool:
        """Whether there is another owner."""
        return self._num_owners > 1 or self._rank > 0

    def bytes_per_row(self, dim: int) -> int:  # noqa: D102
        return wire_for(dim, self._wire).bytes_per_row(dim)

    def as_sent(self, vectors: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        return wire_for(vectors.shape[1], self._wire).rounded(vectors)


class ShardOwner(RowStore):
    """A store of which this rank owns a shard; subclasses say how ranks exchange rows.

    Evaluation reads are the same in all of them: owners apply nothing, rows are not rounded and
    nothing is counted.

    Args:
        specs: The tables.
        seed: As for `LocalStore`.
        device: Where this rank keeps its rows.
        rank: This rank.
        num_workers: Number of ranks, which all train.
        num_owners: Number of ranks that own rows, from rank 0 on.
        wire: A key of `WIRES`.
    """

    is_shared = True

    def __init__(
        self,
        specs: Sequence[TableSpec],
        seed: int,
        device: torch.device | str,
        rank: int,
        num_workers: int,
        num_owners: int,
        wire: str,
    ) -> None:
        super().__init__(specs, seed)
        self.rank = rank
        self.num_owners = num_owners
        self.wire = wire_named(wire)
        self.transport = ShardTransport(rank, num_owners, self.wire)
        self.owned = LocalStore(specs, seed, device, Shard(rank, num_owners))
        self._num_workers = num_workers
        self._packing = Packing(self.layout, num_owners)
        self._counts = RowCounts()
        self.register_load_state_dict_pre_hook(_refuse_state_dict)

    @property
    def num_workers(self) -> int:
        """All ranks train."""
        return self._num_workers

    def bind(self, rule: UpdateRule) -> None:  # noqa: D102
        self.owned.bind(rule)
        self.rule = self.owned.rule

    def parts(self) -> list[TablePart]:  # noqa: D102
        return self.owned.parts()

    def memory_by_table(self) -> dict[str, MemoryUse]:
        """Memory of this rank's shard of each table."""
        return self.owned.memory_by_table()

    def take_counts(self) -> RowCounts:  # noqa: D102
        counts, self._counts = self._counts, RowCounts()
        return counts

    def _counts_of(self, evaluates: bool) -> RowCounts:
        """Where a read is counted; the counts of evaluation reads are dropped."""
        return RowCounts() if evaluates else self._counts

    def _wire_of(self, evaluates: bool) -> Wire:
        """The wire format of the rows that a read returns; evaluation reads are not rounded."""
        return WIRES["float32"] if evaluates else self.wire

    def _requests(
        self,
        update: RowUpdate,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None,
    ) -> list[RowRequest]:
        """The request to each rank: what it owns of the update and of the ids."""
        order, sizes = by_owner(update.ids, self.num_owners, self.num_workers)
        places, read = by_owner(ids, self.num_owners, self.num_workers)
        return [
            RowRequest(update.take(own), asked, held, place)
            for own, asked, held, place in zip(
                order.split(sizes),
                ids.index_select(0, places).split(read),
                [None] * len(read) if clocks is None else clocks[places].split(read),
                places.split(read),
                strict=True,
            )
        ]

    def _optimizer_facts(self) -> str:
        """What all ranks must share of the rule; its settings may differ: the owner's apply."""
        if self.rule is None:
            return "no optimizer"
        return f"optimizer {type(self.rule).__name__} with state {self.rule.state_widths(2)}"

    def _reply(self, requests: Sequence[RowRequest], evaluates: bool) -> list[RowReply]:
        """As the owner, apply the mean of all updates and reply to each request.

        For evaluation reads nothing is applied: the rows are as the update would leave them.
        """
        updates = [request.update for request in requests if request.update.ids.numel()]
        update = None
        if updates:
            update = average_over_workers(updates, self.num_workers, self.layout, self.rule)
        if evaluates:
            return [
                RowReply(
                    torch.ones_like(request.ids, dtype=torch.bool),
                    self.owned.preview(update, request.ids),
                    torch.zeros_like(request.ids),
                )
                for request in requests
            ]
        if update is not None:
            self.owned.exchange(update, update.ids[:0])
        if len(requests) == 1 or len(self.layout.groups) > 1:
            return [self.owned.exchange(None, request.ids, request.clocks) for request in requests]
        return self._read_for_all(requests)

    def _read_for_all(self, requests: Sequence[RowRequest]) -> list[RowReply]:
        """The replies to all requests by one read: its cost hardly grows with their number."""
        sizes = [request.ids.shape[0] for request in requests]
        ids = torch.cat([request.ids for request in requests])
        asked = [request.clocks for request in requests if request.clocks is not None]
        if not asked:
            reply = self.owned.exchange(None, ids)
            parts = (
                reply.stale.split(sizes),
                reply.rows[0].split(sizes),
                reply.clocks.split(sizes),
            )
            return [
                RowReply(stale, (rows,), clocks) for stale, rows, clocks in zip(*parts, strict=True)
            ]
        places = self.owned.shard.positions(ids)
        stale, newer, sent, behind = newer_rows(self.owned.clocks, places, torch.cat(asked), sizes)
        lines = {"rows": self.owned.rows(0), "clocks": self.owned.clocks, **self.owned.state(0)}
        rows, clocks, *state = (part.index_select(0, newer).split(sent) for part in lines.values())
        names = list(self.owned.state(0))
        return [
            RowReply(
                flags,
                (rows[i],),
                clocks[i].long(),
                ({name: parts[i] for name, parts in zip(names, state, strict=True)},),
                behind[i],
            )
            for i, flags in enumerate(stale.split(sizes))
        ]


def _refuse_state_dict(
    module: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any
) -> None:
    """Raise on loading a `state_dict` if ranks share rows: it holds those of one rank only."""
    assert isinstance(module, RowStore)
    if module.num_workers > 1 and any(name.startswith(prefix) for name in state_dict):
        raise ConfigError(
            f"a state_dict holds the rows of one rank, but {module.num_workers} ranks share the "
            "rows of this store: load them with `outsize.load_rows`"
        )
