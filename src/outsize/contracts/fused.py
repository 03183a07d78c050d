"""Updates of rows in the backward pass, which save the copies between backward and step.

The gradients of the rows never exist outside backward. So whatever needs them between backward and
step, or needs several backward passes for one step, is refused in words: clipping, loss scaling,
gradient accumulation, skipped steps, and several look-ups per step.

An update whose gradients are NaN or infinite changes no row. On the CPU it raises at once. On CUDA
the device decides, and the host does not wait: rows stay as they are from that update on, and
`raise_if_non_finite`, called at the end of a step or of several, says so.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from outsize.contracts.ids import IdGuard
from outsize.errors import ConfigError, NonFiniteError
from outsize.kernels.available import uses_triton
from outsize.kernels.distinct.distinct import MOST_IDS_ON_CUDA, distinct
from outsize.kernels.fused.fused import RowsInPlace, read_columns, train_rows
from outsize.kernels.gather.gather import Bags, is_finite, sum_lines
from outsize.kernels.rows.updates import UpdateRule

_WAY_OUT = "make the row optimizer with fused=False"


class FusedRows:
    """Looks up rows whose gradients update them in the backward pass.

    Args:
        read: From a group, store ids and bags to lines (`RowStore.lines_of`).
        in_place: From a group to its table, if there is one (`RowStore.rows_in_place`).
        rule: Binds the optimizer's current settings, and returns the rule.
        update: Applies Σg of the distinct rows of a group by that rule.
        num_rows: Number of rows of the store.

    Attributes:
        squared_norm: Σ over rows of the squares of Σg, of the last backward pass: a number on the
            device of the rows, always in the same memory there. NaN if rows were not updated.
    """

    def __init__(
        self,
        read: Callable[[int, Tensor, Bags | None], Tensor | None],
        in_place: Callable[[int], RowsInPlace | None],
        rule: Callable[[], UpdateRule],
        update: Callable[[int, Tensor, Tensor], None],
        num_rows: int,
    ) -> None:
        self._read, self._in_place, self._rule = read, in_place, rule
        self._update, self._num_rows = update, num_rows
        self._anchor = torch.empty(0, requires_grad=True)  # gives look-ups a gradient
        self._open: weakref.ref[_LookUp] | None = None
        self._trained: _LookUp | None = None
        self._memory: Any = None  # a `DeviceUpdates` once rows on CUDA were looked up
        self.squared_norm: Float32[Tensor, ""] = torch.zeros(())

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the store has no optimizer, and so nothing that updates its rows."""
        return type(None), ()

    def look_up(
        self, ids: Sequence[Int64[Tensor, " _"]], bags: Sequence[Bags | None]
    ) -> list[Float[Tensor, "_ _"]]:
        """Lines for the ids of each group; a group may have none."""
        this = self._begin()
        found: list[Tensor] = []
        for group, (own, bagged) in enumerate(zip(ids, bags, strict=True)):
            table = self._table_on_device(group, own)
            if table is not None:
                from outsize.kernels.fused.fused_triton import look_up

                keys, lines = look_up(table, own, bagged)
                read = _Lines(self, this, group, keys, bagged, lines, table)
            else:
                read_lines = self._read(group, own, bagged)
                assert read_lines is not None
                read = _Lines(self, this, group, own, bagged, read_lines)
            found.append(_FusedLines.apply(self._anchor, read))
        return found

    def look_up_columns(
        self,
        columns: Sequence[Int64[Tensor, " n"]],
        bounds: Int64[Tensor, " columns"],
        offsets: Int64[Tensor, " columns"],
        guard: IdGuard,
    ) -> Float[Tensor, "n columns dim"] | None:
        """Lines for columns of ids of the only group; `None` if `look_up` must be used.

        Args:
            columns: Unchecked ids, one column per feature.
            bounds: Number of rows of each feature's table.
            offsets: The store id of row 0 of each.
            guard: Gets the ids that are out of bounds on CUDA.
        """
        on_device = self._table_on_device(0, *columns)
        if on_device is not None and all(column.dtype == torch.int64 for column in columns):
            from outsize.kernels.fused.fused_triton import look_up_columns

            keys, lines = look_up_columns(on_device, columns, bounds, offsets, guard.worst())
            shaped = lines.view(-1, len(columns), lines.shape[1])
            read = _Lines(self, self._begin(), 0, keys, None, shaped, on_device)
            looked_up: Tensor = _FusedLines.apply(self._anchor, read)
            return looked_up
        table = self._in_place(0)
        found = None if table is None else read_columns(table.rows, columns, bounds, offsets)
        if found is None:
            return None
        ids, lines = found
        shaped = lines.view(-1, len(columns), lines.shape[1])
        vectors: Tensor = _FusedLines.apply(
            self._anchor, _Lines(self, self._begin(), 0, ids, None, shaped)
        )
        return vectors

    def _table_on_device(self, group: int, *ids: Tensor) -> RowsInPlace | None:
        """The table of a group, if Triton kernels look up and update its rows."""
        if not uses_triton(*ids) or sum(part.shape[0] for part in ids) >= MOST_IDS_ON_CUDA:
            return None
        table = self._in_place(group)
        if table is None or not uses_triton(table.rows):
            return None
        from outsize.kernels.fused.fused_triton import DeviceUpdates, can_train

        if not can_train(table) or self._rule().kernel_settings() is None:
            return None
        if self._memory is None or self.squared_norm.device != table.rows.device:
            self._memory = DeviceUpdates(table.rows.device)
            self.squared_norm = torch.zeros((), device=table.rows.device)
        return table

    def _begin(self) -> _LookUp:
        last = None if self._open is None else self._open()
        if last is not None and not last.groups_done:
            raise ConfigError(
                "fused rows are looked up once per step, but an earlier look-up waits for its "
                f"backward pass: embed all features in one call, or {_WAY_OUT}"
            )
        this = _LookUp()
        self._open = weakref.ref(this)
        return this

    def train(self, read: _Lines, gradients: Float[Tensor, "lines dim"]) -> None:
        """Update the rows of one group by the gradients of their lines."""
        this, group, ids, bags = read.look_up, read.group, read.ids, read.bags
        if self._trained not in (None, this) or group in this.groups_done:
            raise ConfigError(
                "fused rows were updated by an earlier backward pass of this step: call the row "
                f"optimizer's step() after every backward pass; to accumulate, {_WAY_OUT}"
            )
        is_first = self._trained is not this
        if is_first and read.table is None:
            self.squared_norm.zero_()
        if read.table is not None:
            self._train_on_device(read.table, read, gradients, is_first)
        elif not self._train_in_place(group, ids, bags, gradients):
            found = distinct(ids, self._num_rows, reuse=True)
            total = sum_lines(gradients, found, bags, reuse=True)
            if not is_finite(total):
                raise NonFiniteError(
                    f"the gradients of {_num_bad(total)} rows are NaN or infinite; that update was "
                    "not applied: lower the learning rate, or look at the batch's inputs"
                )
            self.squared_norm += total.square().sum().to(self.squared_norm.device)
            self._update(group, found.ids, total)
        self._trained = this
        this.groups_done.add(group)

    def _train_in_place(
        self, group: int, ids: Tensor, bags: Bags | None, gradients: Tensor
    ) -> bool:
        rule, table = self._rule().compiled_rule(), self._in_place(group)
        if rule is None or table is None:
            return False
        return train_rows(table, rule, ids, bags, gradients, self.squared_norm)

    def _train_on_device(
        self, table: RowsInPlace, read: _Lines, gradients: Tensor, is_first: bool
    ) -> None:
        from outsize.kernels.fused.fused_triton import train

        rule = self._rule().kernel_settings()
        assert rule is not None
        norms = train(table, rule, self._memory, read.ids, read.bags, gradients)
        if is_first:
            torch.sum(norms, dim=0, out=self.squared_norm)
        else:
            self.squared_norm += norms.sum()

    def refresh_settings(self) -> None:
        """Put the settings of the rule where updates captured in a CUDA graph read them."""
        rule = self._rule().kernel_settings()
        if self._memory is not None and rule is not None:
            self._memory.bind(rule[1])

    def raise_if_non_finite(self) -> None:
        """Raise if an update on CUDA was refused since the last call (synchronizes once)."""
        if self._memory is not None and bool(self._memory.is_bad):
            self._memory.is_bad.zero_()
            raise NonFiniteError(
                "gradients of rows are NaN or infinite; that update and all since were not "
                "applied: lower the learning rate, or look at the inputs of these batches"
            )

    def finish_step(self) -> None:
        """End a step: the next backward pass may update rows again."""
        self._trained = None

    def forget(self) -> None:
        """Allow another look-up; raises if rows were updated, which cannot be undone."""
        if self._trained is not None:
            raise ConfigError(
                "fused rows were updated in the backward pass, so this step cannot be skipped: "
                f"call the row optimizer's step(), or {_WAY_OUT}"
            )
        self._open = None


class _LookUp:
    """One call of `look_up`; freed with its graph."""

    def __init__(self) -> None:
        self.groups_done: set[int] = set()


@dataclass
class _Lines:
    """The lines of one group, and where they come from.

    Attributes:
        fused: What made the look-up.
        look_up: The look-up.
        group: The index of the group.
        ids: Store ids; the rows of the ids within `table` if there is one.
        bags: How they form lines; `None` for one line per id.
        lines: The lines, of any shape that ends in the width of rows; handed over in forward.
        table: The table of the group, if Triton kernels update it.
    """

    fused: FusedRows
    look_up: _LookUp
    group: int
    ids: Tensor
    bags: Bags | None
    lines: Tensor | None
    table: RowsInPlace | None = None


class _FusedLines(torch.autograd.Function):
    """Lines of one group, whose backward pass updates their rows."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, read: Any) -> Tensor:
        ctx.read = read
        lines: Tensor = read.lines
        read.lines = None
        return lines

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> Any:
        ctx.read.fused.train(ctx.read, gradients.reshape(-1, gradients.shape[-1]))
        return None, None


class NoGradients(list[Tensor]):
    """The parameters of an optimizer whose gradients are used up in backward."""

    def __iter__(self) -> NoReturn:
        raise ConfigError(
            "the gradients of fused rows are used up in the backward pass, so they cannot be "
            f"clipped, scaled or read: {_WAY_OUT}"
        )


def _num_bad(total: Tensor) -> int:
    return int((~total.isfinite()).any(dim=1).sum())
