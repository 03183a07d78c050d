"""The contract of a store: where rows live, and the one way in and out.

`exchange` is the primitive: push an update, then ask for rows given the clocks already held.
Everything else (`read`, `add`, `checkout`, `submit`) is derived from it, and a cache is a store
that wraps a store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from outsize.contracts.ids import IdGuard
from outsize.contracts.layout import RowLayout, TablePart
from outsize.contracts.messages import RowCounts, RowReply, RowUpdate
from outsize.contracts.moves import keeping_types
from outsize.contracts.transport import Transport
from outsize.contracts.updates import PendingGradients, rows_after
from outsize.errors import ConfigError, DataError, NonFiniteError
from outsize.kernels.rows.updates import UpdateRule
from outsize.spec import MemoryUse, TableSpec
from outsize.suggestions import few

Store = TypeVar("Store", bound="RowStore")


class RowStore(nn.Module, ABC):
    """Holds the rows of several tables and applies updates to them.

    Training goes `checkout` → backward → `submit(pending.merge())`: the rows of a batch are leaf
    tensors, and nothing in the store changes before the update is submitted.

    Evaluation goes through `peek` and `read`, and moves nothing: no clock, no row, no update that
    is held back, no copy, no count. Training with any number of evaluation reads in between is, bit
    for bit, training without. They show every update submitted so far, also those that wait for a
    later exchange, and are entered by all ranks together where `exchange` is.

    Rows of bfloat16 and float16 are updated in float32 and rounded at random, right in the mean
    (`outsize.kernels.rows.rounding`); every draw is a function of (seed, row, its clock, column).

    A store is a module: its rows, clocks and optimizer state are buffers. Moving it between
    devices moves them; a change of floating-point type leaves them as they are, because a
    half-precision optimizer state would be a silent loss.

    Attributes:
        layout: Where each table lies in the store's id space.
        pending: Gradients that backward has left and no optimizer has used yet.
        rule: How updates are applied; set by a row optimizer.
        transport: How rows travel to and from their owners.
        seed: Of first values, and of the rounding of half-precision rows.
        is_shared: Whether each rank keeps a part of the rows, instead of all of them.
        is_asynchronous: Whether each rank trains at its own pace, instead of in step with others.
    """

    is_shared: bool = False
    is_asynchronous: bool = False

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
        """Apply an update, then answer for `ids`.

        Args:
            update: What to apply first; `None` for nothing.
            ids: Store ids to ask for, ascending, each once; may be empty.
            clocks: For each id the newest clock the asker is content with: a row comes back only
                if its own clock is greater. `None` asks for every row, and for no state.
        """

    @abstractmethod
    def bind(self, rule: UpdateRule) -> None:
        """Apply updates by this rule from now on.

        The first rule makes the state it needs. A later one must be of the same kind: it brings
        new settings (a learning rate), not a new meaning for the state already there.
        """

    @abstractmethod
    def memory_by_table(self) -> dict[str, MemoryUse]:
        """What each table costs here: its rows, clocks (as an index) and optimizer state."""

    @abstractmethod
    def parts(self) -> list[TablePart]:
        """Rows, clocks and optimizer state kept by this rank, in place; `flush` before saving."""

    def saves_parts(self) -> bool:
        """Whether this rank's parts belong in a checkpoint: not those that another rank has too."""
        return True

    def rank_state(self) -> dict[str, Tensor]:
        """What this rank alone knows besides rows, and a resumed run of as many ranks needs."""
        return {}

    def fits_rank_state(self, state: Mapping[str, Tensor]) -> bool:
        """Whether `load_rank_state` can take over this; asked before anything is changed.

        The tables, and the rows that this rank keeps of them, are the same as when it was saved.
        """
        return True

    def load_rank_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `rank_state` gave."""

    def memory_use(self) -> MemoryUse:
        """What the store costs, all tables and any cached copies together."""
        return sum(self.memory_by_table().values(), MemoryUse())

    @property
    def num_workers(self) -> int:
        """How many ranks' gradients are averaged into one update of a row."""
        return 1

    def take_counts(self) -> RowCounts | None:
        """What has been read, sent and evicted here since the last call; `None` if not counted."""
        return None

    def flush(self) -> None:
        """Bring every update that is still held back to the rows; nothing where none can be."""

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.leave()

    @torch.no_grad()
    def preview(
        self, update: RowUpdate | None, ids: Int64[Tensor, " n"]
    ) -> tuple[Float[Tensor, "_ _"], ...]:
        """The rows that `exchange(update, ids)` would give, one tensor a group, without any effect.

        As this is written, it is right for a store whose `exchange` has no effect without an
        update, holds nothing back and rounds nothing; any other store has its own.

        Args:
            update: What to show beside all that was submitted; `None` for nothing.
            ids: As for `exchange`.
        """
        if update is None or not update.ids.numel():
            return self.exchange(None, ids).rows
        assert self.rule is not None, "an update comes from an optimizer"
        reply = self.exchange(None, ids, torch.full_like(ids, -1))
        return rows_after(update, ids, reply, self.layout, self.rule, self.seed)

    def peek(self, ids: Int64[Tensor, " n"]) -> tuple[Float[Tensor, "_ _"], ...]:
        """Rows for evaluation, one tensor a group. `ids` as for `exchange`."""
        return self.preview(None, ids)

    def checkout(self, ids: Int64[Tensor, " n"]) -> tuple[Float[Tensor, "_ _"], ...]:
        """Rows for training: one float32 leaf a group, whose gradients become `pending`."""
        reply = self.exchange(None, ids)
        runs = self.layout.split(ids)
        return tuple(
            self.pending.leaf(rows, run, group)
            for group, (rows, run) in enumerate(zip(reply.rows, runs, strict=True))
        )

    def reduce_pending(self) -> None:
        """Average pending gradients over ranks that train together; nothing where there is one.

        Called after backward and before clipping, by all ranks; `RowOptimizer.step` calls it too.
        """

    def any_rank(self, flag: bool) -> bool:
        """Whether a flag is set on any rank that this one trains in step with; all ranks enter."""
        return flag

    def fail(self) -> None:
        """Let other ranks raise that wait for this one in a read: it cannot take part."""

    def forget_pending(self) -> None:
        """Drop pending gradients: they have been applied, or are to be skipped."""
        self.pending.clear()

    def submit(self, update: RowUpdate | None) -> None:
        """Hand in the update of one step; a store may hold it back for its next exchange."""
        self.exchange(update, torch.empty(0, dtype=torch.int64, device=self._device()))

    def guard(self, table: str, ids: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """Check ids of one table, as `IdGuard` does."""
        return self._guards[self.layout.spec(table).name](ids.reshape(-1, 1)).view(ids.shape)

    def raise_if_bad_ids(self) -> None:
        """Report ids out of range that were flagged on CUDA; call once a step."""
        for guard in self._guards.values():
            guard.raise_if_bad()

    @torch.no_grad()
    def read(
        self, ids: Int64[Tensor, "*shape"], table: str | None = None
    ) -> Float[Tensor, "*shape dim"]:
        """Current values of rows, without any effect on the store.

        Args:
            ids: Row numbers within the table, of any shape, repeats allowed.
            table: Its name; may be left out if the store has one table.
        """
        spec = self._table(table)
        unique, inverse = torch.unique(
            self.guard(spec.name, ids) + self.layout.offsets[spec.name], return_inverse=True
        )
        return self.peek(unique)[self.layout.group_of(spec.name)][inverse]

    @torch.no_grad()
    def add(
        self,
        ids: Int64[Tensor, "*shape"],
        gradients: Float[Tensor, "*shape dim"],
        table: str | None = None,
    ) -> None:
        """Apply gradients to rows by the bound rule, as one batch: repeats are summed, one tick.

        Args:
            ids: Row numbers within the table.
            gradients: One gradient for each id.
            table: Its name; may be left out if the store has one table.
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
        unique, inverse = torch.unique(
            self.guard(spec.name, ids) + self.layout.offsets[spec.name], return_inverse=True
        )
        total = torch.zeros(unique.shape[0], spec.dim, device=gradients.device)
        total.index_add_(0, inverse.flatten(), gradients.reshape(-1, spec.dim).float())
        group_index = self.layout.group_of(spec.name)
        parts = tuple(
            total if i == group_index else total.new_empty(0, group.dim)
            for i, group in enumerate(self.layout.groups)
        )
        self.submit(RowUpdate(unique, parts, torch.ones_like(unique)))

    def _table(self, table: str | None) -> TableSpec:
        if table is not None:
            return self.layout.spec(table)
        if len(self.layout.specs) > 1:
            raise ConfigError(
                f"this store holds {few(sorted(self.layout.offsets))}: say which with table="
            )
        return self.layout.specs[0]

    def _device(self) -> torch.device:
        return next(self.buffers()).device

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RowStore:
        """Follow a move to another device; keep every type (see the class's text)."""
        super()._apply(keeping_types(fn), recurse)
        return self
