"""The contract of a store, which holds rows and applies updates to them.

`exchange` is the primitive: push an update, then request the rows that are newer than given clocks.
Everything else (`read`, `add`, `checkout`, `submit`) is derived from it. A cache is a store that
wraps a store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from outsize.contracts.fused import FusedRows
from outsize.contracts.ids import IdGuard
from outsize.contracts.layout import RowLayout, TablePart
from outsize.contracts.messages import RowCounts, RowReply, RowUpdate
from outsize.contracts.moves import keeping_types
from outsize.contracts.transport import Transport
from outsize.contracts.updates import PendingGradients, rows_after
from outsize.errors import ConfigError, DataError, NonFiniteError
from outsize.kernels.fused.fused import RowsInPlace
from outsize.kernels.gather.gather import Bags
from outsize.kernels.rows.updates import UpdateRule
from outsize.spec import MemoryUse, TableSpec
from outsize.suggestions import few

Store = TypeVar("Store", bound="RowStore")


class RowStore(nn.Module, ABC):
    """Holds the rows of several tables and applies updates to them.

    Training is `checkout` → backward → `submit(pending.merge())`. The rows of a batch are leaf
    tensors, and nothing in the store changes until the update is submitted.

    Evaluation uses `peek` and `read`, which change nothing: no clock, row, pending update, copy or
    count. Training with any number of evaluation reads equals training without them, bit for bit.
    They include every update submitted so far, even if it is held for a later exchange. If
    `exchange` is collective, so are they: all ranks call them.

    Rows of bfloat16 and float16 are updated in float32 and rounded stochastically, without bias
    (`outsize.kernels.rows.rounding`); every draw is a function of (seed, row, its clock, column).

    A store is a module: its rows, clocks and optimizer state are buffers. `.to(device)` moves them.
    A change of floating-point type, as by `.half()`, leaves them unchanged, because optimizer state
    in half precision would silently lose small values.

    Attributes:
        layout: Maps tables to store ids.
        pending: Gradients from backward that no optimizer has used yet.
        rule: The rule by which updates are applied; set by a row optimizer.
        transport: How rows travel to and from their owners.
        seed: Seed of initial values and of the rounding of half-precision rows.
        is_shared: Whether each rank keeps a part of the rows instead of all of them.
        is_asynchronous: Whether ranks train at their own pace instead of in lockstep.
        reads_ahead: Whether `prefetch` starts to read rows.
        fused: What updates rows in the backward pass, if an optimizer was made with `fused`.
    """

    is_shared: bool = False
    is_asynchronous: bool = False
    reads_ahead: bool = False
    fused: FusedRows | None = None

    def __init__(self, specs: Sequence[TableSpec], seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.layout = RowLayout(specs)
        self.pending = PendingGradients(self.layout)
        self.rule: UpdateRule | None = None
        self.transport = Transport()
        self._guards = {
            spec.name: IdGuard({f"table {spec.name!r}": spec.num_rows}) for spec in specs
        }

    @abstractmethod
    def exchange(
        self,
        update: RowUpdate | None,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None = None,
    ) -> RowReply:
        """Apply an update, then return the requested rows.

        Args:
            update: The update to apply first, if any.
            ids: Store ids to request, ascending, each once; may be empty.
            clocks: One asked clock per id: a row is sent only if its own clock is greater. `None`
                requests every row, without optimizer state.
        """

    @abstractmethod
    def bind(self, rule: UpdateRule) -> None:
        """Apply updates by this rule from now on.

        The first rule allocates its state. A later one must be of the same type with the same
        state: it may only change settings such as the learning rate. Another one raises a
        `ConfigError` that names it.
        """

    @abstractmethod
    def memory_by_table(self) -> dict[str, MemoryUse]:
        """Memory of each table on this rank: rows, clocks (as an index) and optimizer state."""

    @abstractmethod
    def parts(self) -> list[TablePart]:
        """Rows, clocks and optimizer state of this rank, in place; call `flush` before saving."""

    def saves_parts(self) -> bool:
        """Whether this rank saves its parts; false if another rank saves the same rows."""
        return True

    def rank_state(self) -> dict[str, Tensor]:
        """State of this rank besides rows, for a resumed run with as many ranks."""
        return {}

    def fits_rank_state(self, state: Mapping[str, Tensor]) -> bool:
        """Whether `load_rank_state` can load this; called before anything is changed.

        The caller checks that the tables, and this rank's rows of them, are those that were saved.
        """
        return True

    def load_rank_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what `rank_state` returned."""

    def memory_use(self) -> MemoryUse:
        """Memory of the store: all tables, and cached copies if there are any."""
        return sum(self.memory_by_table().values(), MemoryUse())

    @property
    def num_workers(self) -> int:
        """Number of ranks whose gradients are averaged into one update of a row."""
        return 1

    def take_counts(self) -> RowCounts | None:
        """Return and reset the counts of this rank; `None` if the store does not count."""
        return None

    def lines_of(
        self, group: int, ids: Int64[Tensor, " n"], bags: Bags | None
    ) -> Float[Tensor, "lines dim"] | None:
        """Float32 lines for ids of a group, or bags of them; `None` if rows are not at hand.

        A store that implements this allows optimizers with `fused`.

        Args:
            group: The index of the group.
            ids: Store ids of the group, in any order, with repeats.
            bags: How ids form bags; `None` for one line per id.
        """
        return None

    def rows_in_place(self, group: int) -> RowsInPlace | None:
        """The rows, state and clocks of a group, if `lines_of` reads them from this memory."""
        return None

    def flush(self) -> None:
        """Apply all pending updates to their rows; does nothing if the store holds none."""

    def close(self) -> None:
        """Release what the store holds besides memory, such as a server; by default nothing.

        A store that wraps another closes it. Entered by all ranks together; nothing is flushed, and
        after it only `parts` is sure to work. Closing twice is fine.
        """

    def leave(self) -> None:
        """Close without waiting for other ranks, as after an error; by default nothing."""

    def __enter__(self: Store) -> Store:
        """A store is a context: it closes at its end, or leaves on an error."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *unused: object) -> None:
        if kind is None:
            self.close()
        else:
            self.leave()

    @torch.no_grad()
    def preview(
        self, update: RowUpdate | None, ids: Int64[Tensor, " n"]
    ) -> tuple[Float[Tensor, "_ _"], ...]:
        """The rows that `exchange(update, ids)` would return, without side effects.

        This default is for stores whose `exchange` without an update has no side effects, holds no
        updates and rounds nothing. Other stores override it.

        Args:
            update: An update to include, besides all that were submitted; `None` for none.
            ids: As for `exchange`.
        """
        if update is None or not update.ids.numel():
            return self.exchange(None, ids).rows
        assert self.rule is not None, "an update comes from an optimizer"
        reply = self.exchange(None, ids, torch.full_like(ids, -1))
        return rows_after(update, ids, reply, self.layout, self.rule, self.seed)

    def peek(self, ids: Int64[Tensor, " n"]) -> tuple[Float[Tensor, "_ _"], ...]:
        """Rows for evaluation, one tensor per group; `ids` as for `exchange`."""
        return self.preview(None, ids)

    def checkout(self, ids: Int64[Tensor, " n"]) -> tuple[Float[Tensor, "_ _"], ...]:
        """Rows for training: one float32 leaf per group, whose gradients become `pending`."""
        return self._leaves(self.exchange(None, ids).rows, ids)

    def prefetch(self, ids: Int64[Tensor, " n"]) -> None:
        """Say what a later `checkout` will ask for; a store that `reads_ahead` starts to read it.

        All ranks call it, in the order in which they check out. By default nothing is done.
        """

    def fail_ahead(self, error: Exception) -> None:
        """In place of `prefetch`, if this rank cannot read its batch: all ranks raise at its turn.

        By default nothing is done: the batch fails when it is read.
        """

    def use_own_group(self) -> None:
        """Exchange over a process group of its own, so that other collectives may run meanwhile.

        All ranks call it, before the first exchange.
        """
        raise ConfigError(
            f"the exchange of a {type(self).__name__} cannot run beside other collectives: "
            "overlap a ShardedStore, or a CachedStore in front of one"
        )

    def reduce_pending(self) -> None:
        """Average pending gradients over ranks, if the store is replicated.

        All ranks call it, after backward and before clipping; `RowOptimizer.step` calls it, too.
        """

    def any_rank(self, flag: bool) -> bool:
        """Whether a flag is set on any rank that trains synchronously with this one; collective."""
        return flag

    def fail(self) -> None:
        """Make other ranks raise instead of waiting for this one, which has failed."""

    def forget_pending(self) -> None:
        """Drop pending gradients, after they were applied or to skip them."""
        self.pending.clear()

    def submit(self, update: RowUpdate | None) -> None:
        """Submit the update of one step; a store may hold it for its next exchange."""
        self.exchange(update, self._no_ids())

    def guard(self, table: str, ids: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """Check ids of one table, as `IdGuard` does."""
        return self._guards[self.layout.spec(table).name](ids.reshape(-1, 1)).view(ids.shape)

    def raise_if_bad_ids(self) -> None:
        """Raise if an id out of range was flagged on CUDA; call it once per step."""
        for guard in self._guards.values():
            guard.raise_if_bad()

    @torch.no_grad()
    def read(
        self, ids: Int64[Tensor, "*shape"], table: str | None = None
    ) -> Float[Tensor, "*shape dim"]:
        """Current values of rows, without side effects.

        Args:
            ids: Ids of the table, of any shape; repeats are allowed.
            table: Name of the table; optional if the store has one table.
        """
        spec = self._table(table)
        unique, inverse = self._unique(spec, ids)
        return self.peek(unique)[self.layout.group_of(spec.name)][inverse]

    @torch.no_grad()
    def add(
        self,
        ids: Int64[Tensor, "*shape"],
        gradients: Float[Tensor, "*shape dim"],
        table: str | None = None,
    ) -> None:
        """Apply gradients to rows as one batch: repeated ids are summed and count one tick.

        Args:
            ids: Ids of the table, of any shape.
            gradients: One gradient per id.
            table: Name of the table; optional if the store has one table.
        """
        spec = self._table(table)
        if gradients.shape != (*ids.shape, spec.dim):
            raise DataError(
                f"table {spec.name!r}: gradients must be {(*ids.shape, spec.dim)}, "
                f"but got {tuple(gradients.shape)}"
            )
        if not bool(torch.isfinite(gradients).all()):
            raise NonFiniteError(
                f"table {spec.name!r}: gradients hold NaN or infinity; nothing was applied"
            )
        unique, inverse = self._unique(spec, ids)
        total = torch.zeros(unique.shape[0], spec.dim, device=gradients.device)
        total.index_add_(0, inverse.flatten(), gradients.reshape(-1, spec.dim).float())
        group_index = self.layout.group_of(spec.name)
        parts = tuple(
            total if i == group_index else total.new_empty(0, group.dim)
            for i, group in enumerate(self.layout.groups)
        )
        self.submit(RowUpdate(unique, parts, torch.ones_like(unique)))

    def _leaves(
        self, rows: tuple[Float[Tensor, "_ _"], ...], ids: Int64[Tensor, " n"]
    ) -> tuple[Float[Tensor, "_ _"], ...]:
        """Rows of a reply as leaves, one per group, given their ids."""
        runs = self.layout.split(ids)
        return tuple(
            self.pending.leaf(part, run, group)
            for group, (part, run) in enumerate(zip(rows, runs, strict=True))
        )

    def _unique(
        self, spec: TableSpec, ids: Int64[Tensor, "*shape"]
    ) -> tuple[Int64[Tensor, " n"], Int64[Tensor, "*shape"]]:
        """The distinct store ids of checked ids of a table, and the place of each id in them."""
        store_ids = self.guard(spec.name, ids) + self.layout.offsets[spec.name]
        unique, inverse = torch.unique(store_ids, return_inverse=True)
        return unique, inverse

    def _table(self, table: str | None) -> TableSpec:
        if table is not None:
            return self.layout.spec(table)
        if len(self.layout.specs) > 1:
            raise ConfigError(
                f"this store holds {few(sorted(self.layout.offsets))}: name one with table="
            )
        return self.layout.specs[0]

    def _require_rule(self) -> UpdateRule:
        if self.rule is None:
            raise ConfigError(
                "this store has no optimizer yet: make one first, such as outsize.RowSGD(store)"
            )
        return self.rule

    def _device(self) -> torch.device:
        return next(self.buffers()).device

    def _no_ids(self) -> Int64[Tensor, " 0"]:
        return torch.empty(0, dtype=torch.int64, device=self._device())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RowStore:
        """Move to another device; keep the type of every tensor (see the class docstring)."""
        super()._apply(keeping_types(fn), recurse)
        return self
