"""Updates of rows in the backward pass, which save the copies between backward and step.

The gradients of the rows never exist outside backward. So whatever needs them between backward and
step, or needs several backward passes for one step, is refused in words: clipping, loss scaling,
gradient accumulation, skipped steps, and several look-ups per step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.errors import ConfigError, NonFiniteError
from outsize.kernels.distinct.distinct import distinct
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
            lines = self._read(group, own, bagged)
            assert lines is not None
            read = _Lines(self, this, group, own, bagged, lines)
            found.append(_FusedLines.apply(self._anchor, read))
        return found

    def look_up_columns(
        self,
        columns: Sequence[Int64[Tensor, " n"]],
        bounds: Int64[Tensor, " columns"],
        offsets: Int64[Tensor, " columns"],
    ) -> Float[Tensor, "n columns dim"] | None:
        """Lines for columns of ids of the only group; `None` if `look_up` must be used.

        Args:
            columns: Unchecked ids, one column per feature.
            bounds: Number of rows of each feature's table.
            offsets: The store id of row 0 of each.
        """
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
        if not self._train_in_place(group, ids, bags, gradients):
            found = distinct(ids, self._num_rows, reuse=True)
            total = sum_lines(gradients, found, bags, reuse=True)
            if not is_finite(total):
                raise NonFiniteError(
                    f"the gradients of {_num_bad(total)} rows are NaN or infinite; that update was "
                    "not applied: lower the learning rate, or look at the batch's inputs"
                )
            self._update(group, found.ids, total)
        self._trained = this
        this.groups_done.add(group)

    def _train_in_place(
        self, group: int, ids: Tensor, bags: Bags | None, gradients: Tensor
    ) -> bool:
        rule, table = self._rule().compiled_rule(), self._in_place(group)
        if rule is None or table is None:
            return False
        return train_rows(table, rule, ids, bags, gradients)

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
        ids: Store ids.
        bags: How they form lines; `None` for one line per id.
        lines: The lines, of any shape that ends in the width of rows; handed over in forward.
    """

    fused: FusedRows
    look_up: _LookUp
    group: int
    ids: Tensor
    bags: Bags | None
    lines: Tensor | None


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
